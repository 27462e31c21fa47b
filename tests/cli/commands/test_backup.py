"""`headrace backup`: what it prints, and what it refuses."""

import re
from pathlib import Path

import pytest
from tests.harness.wire import Wire, batch

from headrace.cli import main
from headrace.testing import Server

pytestmark = pytest.mark.servers


def test_a_running_server_is_backed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, target = tmp_path / "data", tmp_path / "backup"
    with Server(data) as running, Wire(running.kafka) as wire:
        wire.create("flights")
        assert wire.produce("flights", batch(b"UA 1545")).error_code == 0
        (tmp_path / "headrace.toml").write_text(f'data = "{data}"\n')
        assert main.run(["backup", str(target), "--config", str(tmp_path / "headrace.toml")]) == 0
        assert re.fullmatch(
            rf"{re.escape(str(data))} is backed up in {re.escape(str(target))} \(\d+\.\d MiB\)\n",
            capsys.readouterr().out,
        )
        assert main.run(["backup", str(target), "--data", str(data)]) == 1
        assert capsys.readouterr().err == f"headrace: {target} exists: choose another directory\n"
    with Server(target) as restored, Wire(restored.kafka) as wire:
        assert wire.fetch("flights", 0).high_watermark == 1


def test_data_elsewhere_is_no_data_of_this_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main.run(["backup", str(tmp_path / "b"), "--data", str(tmp_path / "none")]) == 1
    assert "has no records: it is not the data directory of a server" in capsys.readouterr().err
    assert main.run(["backup", str(tmp_path / "b"), "--config", str(tmp_path / "none")]) == 2
    assert "cannot read the configuration file" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_REDIS", "redis://127.0.0.1:1/0")
    assert main.run(["backup", str(tmp_path / "b")]) == 2
    assert "the data is in your own Redis: back up that Redis" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
