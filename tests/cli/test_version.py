import pytest

from headrace import __version__
from headrace.cli import main


def test_the_version_names_what_is_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"headrace {__version__}"
    assert [line.split()[0] for line in lines] == ["headrace", "python", "valkey", "records"]
    assert lines[2].endswith("(embedded)")
