"""Errors of clients for a faulty archive: no archived record is skipped."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import structlog
from deltalake import DeltaTable
from tests.harness.wire import Wire, batches
from tests.lakehouse.conftest import Kept

from headrace.kafka.errors import Code

STORAGE_ERROR = Code.KAFKA_STORAGE_ERROR


@pytest.fixture
def archived(kept: Kept) -> Kept:
    """60 records, of which 40 are only in the archive, in files of 20."""
    kept.create().fill(60)
    kept.archive(40, rows_per_file=20, group=5)
    assert kept.retain() == (0, 40)
    return kept


def files(kept: Kept) -> list[Path]:
    return sorted((kept.folder / "table").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def test_a_file_that_was_swapped_and_vacuumed_under_a_reader(archived: Kept) -> None:
    assert archived.read(0, 5) == archived.written[:5]
    table = DeltaTable(str(archived.folder / "table"))
    before = files(archived)
    assert table.optimize.compact()["numFilesAdded"] == 1
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert not any(path.exists() for path in before)
    assert archived.read(0, 60) == archived.written


def test_a_file_that_is_missing(archived: Kept) -> None:
    first = min(files(archived), key=_first_offset)
    first.rename(first.with_suffix(".away"))
    with structlog.testing.capture_logs() as logged:
        assert archived.error(5) == STORAGE_ERROR
    told = [line for line in logged if line["log_level"] == "error"]
    assert [line["topic"] for line in told] == [archived.name]
    assert "is missing" in str(told[0]["reason"])
    assert archived.error(25) == 0
    assert archived.starts() == (0, 40)
    first.with_suffix(".away").rename(first)
    assert archived.read(0, 60) == archived.written


def _first_offset(path: Path) -> int:
    import pyarrow.parquet as pq  # noqa: PLC0415

    return int(pq.read_table(path, columns=["offset"])["offset"][0].as_py())


def test_a_table_that_is_gone_and_comes_back(archived: Kept) -> None:
    table = archived.folder / "table"
    table.rename(archived.folder / "away")
    archived.server.restart()
    assert archived.starts() == (0, 40)  # without the table, too
    assert archived.error(0) == STORAGE_ERROR
    with Wire(archived.server.kafka) as wire:
        assert wire.offset(archived.name, 1).error_code == STORAGE_ERROR
    archived.fill(20)
    assert archived.retain() == (0, 40)  # nothing expires
    assert archived.read(40, 40) == archived.written[40:]
    (archived.folder / "away").rename(table)
    assert archived.read(0, 80) == archived.written


def test_a_table_that_is_behind_what_was_trimmed(archived: Kept) -> None:
    """An older copy has replaced it: the missing records must not be skipped silently."""
    table, copy = archived.folder / "table", archived.folder / "copy"
    shutil.copytree(table, copy)
    archived.archive()
    assert archived.retain() == (0, 60)
    shutil.rmtree(table)
    copy.rename(table)
    archived.server.restart()
    assert archived.error(45) == STORAGE_ERROR
    assert archived.read(0, 40) == archived.written[:40]
    assert archived.retain() == (0, 60)


def test_files_that_are_no_archives(archived: Kept) -> None:
    archived.server.restart()
    for path in files(archived):
        path.write_bytes(b"PAR1" + b"\0" * 40)
    assert archived.error(3) == STORAGE_ERROR
    for log in (archived.folder / "table" / "_delta_log").iterdir():
        log.write_text("{")
    archived.server.restart()
    assert archived.error(3) == STORAGE_ERROR
    assert archived.starts() == (0, 40)
    assert archived.read(40, 20) == archived.written[40:]


def test_a_server_without_the_extra_says_what_to_install(archived: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "deltalake" else find(name, *more)

    archived.server.stop()
    monkeypatch.setattr("headrace.text.extras.find_spec", without)
    archived.server.start()
    with structlog.testing.capture_logs() as logged:
        assert archived.error(0) == STORAGE_ERROR
    assert "install the extra `lake`" in str([line.get("reason") for line in logged])
    assert archived.read(40, 20) == archived.written[40:]
    monkeypatch.undo()
    assert archived.read(0, 60) == archived.written


def test_a_document_that_says_nothing(archived: Kept) -> None:
    archived.server.restart()
    import redis  # noqa: PLC0415

    from headrace.storage.layout.keys import Keyspace  # noqa: PLC0415

    with redis.Redis.from_url(archived.server.storage) as connection:
        key = Keyspace().documents("archives")
        for topic_id in connection.hkeys(key):
            connection.hset(key, topic_id, b"{}")
    assert archived.error(0) == STORAGE_ERROR
    with Wire(archived.server.kafka) as wire:
        assert len(batches(wire.fetch(archived.name, 40).records)) == 1
