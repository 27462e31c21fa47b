"""Certificates that `headrace tls create` makes."""

from pathlib import Path

import pytest

from headrace.cli.main import run


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tls", "create", str(tmp_path / "c"), "--host", "h.example"]) == 0
    assert str(tmp_path / "c" / "server.pem") in capsys.readouterr().out
    assert run(["tls", "create", str(tmp_path / "c")]) == 1
    assert "exists already: name another directory" in capsys.readouterr().err
    assert run(["tls", "create", str(tmp_path / "d"), "--host", "a/b"]) == 2
