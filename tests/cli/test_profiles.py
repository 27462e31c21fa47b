"""Commands and profiles; what a profile may say is tested in tests/server/test_profiles.py."""

from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.server.config import profiles_file
from headrace.testing import Server


def write(home: Path, text: str) -> None:
    path = profiles_file({"XDG_CONFIG_HOME": str(home)})
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o600)


def test_a_command_uses_the_given_profile(
    running: Server, nobodys_profiles: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(nobodys_profiles, f'[here]\nbootstrap = "{running.kafka}"\n')
    assert main.run(["brokers", "--profile", "here"]) == 0
    monkeypatch.setenv("HEADRACE_PROFILE", "here")
    assert main.run(["topics", "list"]) == 0
    capsys.readouterr()
    assert main.run(["topics", "list", "--profile", "hree"]) == 2
    assert "did you mean here?" in capsys.readouterr().err


def test_a_flag_overrides_everything(headrace: Any, nobodys_profiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(nobodys_profiles, '[default]\nbootstrap = "nowhere:1"\n')
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "nowhere:2")
    headrace.run("topics", "list")
