"""Warnings about the embedded Valkey's directory when another Redis is used."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.server.options import DEFAULT_DATA
from headrace.server.storage import log_unused_data


def test_an_unused_directory_is_reported_and_more_so_with_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the default directory is not
    with capture_logs() as told:
        log_unused_data(Path(DEFAULT_DATA))
        log_unused_data(tmp_path)
        (tmp_path / "appendonlydir").mkdir()
        log_unused_data(tmp_path)
    mine = [(each["log_level"], each["data"]) for each in told if "data directory" in each["event"]]
    assert mine == [("info", str(tmp_path)), ("warning", str(tmp_path))]
