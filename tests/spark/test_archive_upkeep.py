"""Compaction, retention and vacuum of the archive's tables during archiving and reads. Without Spark."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver, archived, pairs

from headrace.lakehouse.read.table import LakeTable
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable, Conflict
from headrace.records.build import build
from headrace.topics.archive import Archived
from headrace.topics.model import Topic

from .conftest import DAY, records


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    """Two partitions of 100 records each."""
    created = storage.create_topic(request.node.name.replace("[", "-").rstrip("]"), partitions=2)
    for partition in (0, 1):
        storage.append_batch(created, partition, bytes(build(records(100))))
    return created


@pytest.fixture
def table(tmp_path: Path, storage: BareStorage, topic: Topic) -> Path:
    """Ten small files of the first partition and five of the second, the last ten records of each to come."""
    archiver = Archiver(storage, topic, tmp_path / "table")
    for start in range(0, 90, 9):
        archiver.archive((0, start, start + 9), *([(1, start, start + 18)] if start % 18 == 0 else []))
    return tmp_path / "table"


def opened(table: Path) -> ArchiveTable:
    return ArchiveTable(Place.of(str(table)))


def listed(table: Path) -> list[tuple[int, int, int]]:
    rows = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    return sorted((row["min.partition"], row["min.offset"], row["max.offset"]) for row in rows)


def test_small_files_are_joined_in_offset_order(table: Path, storage: BareStorage, topic: Topic) -> None:
    before = DeltaTable(table).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    reader = DeltaTable(table).to_pyarrow_dataset()
    done = maintenance.compact(opened(table))
    assert (done.before, done.after) == (15, 2)
    assert listed(table) == [(0, 0, 89), (1, 0, 89)]
    for path in DeltaTable(table).file_uris():
        assert pq.read_table(path).column("offset").to_pylist() == list(range(90))
    after = DeltaTable(table).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert after.equals(before)
    assert reader.count_rows() == 180, "who began before reads on"
    assert maintenance.compact(opened(table)) == maintenance.Compacted()
    # The archive goes on where it was.
    assert Archiver(storage, topic, table).archive((0, 0, 100), (1, 0, 100)) == 20
    assert archived(table) == pairs(0, range(100)) + pairs(1, range(100))


def test_large_files_stay_and_neighbours_are_joined_up_to_the_target(table: Path) -> None:
    sizes = pa.table(DeltaTable(table).get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    maintenance.compact(opened(table), target_bytes=3 * max(sizes))
    assert listed(table) == [(0, 0, 26), (0, 27, 53), (0, 54, 89), (1, 0, 53), (1, 54, 89)]
    assert archived(table) == pairs(0, range(90)) + pairs(1, range(90))


def test_during_a_running_archive_nothing_is_lost_or_duplicated(
    table: Path, storage: BareStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Archiver(storage, topic, table)

    def archive_meanwhile(step: str) -> None:
        # The archive has read its snapshot and written its files: the compaction comes in between.
        if step == "files written":
            maintenance.compact(opened(table))

    archiver = Archiver(storage, topic, table, step=archive_meanwhile)
    assert archiver.archive((0, 90, 95)) == 5
    # And the other way round: the archive commits while old records are taken out.
    kept = opened(table)
    snapshot = kept.snapshot()
    fresh.archive((0, 95, 100), (1, 90, 100))
    monkeypatch.setattr(kept, "snapshot", lambda: snapshot)
    assert maintenance.expire(kept, before=datetime.now(UTC)) == (3, 185)
    assert archived(table) == pairs(0, range(95, 100)) + pairs(1, range(90, 100))


def test_two_that_swap_the_same_files_are_kept_apart(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = maintenance._join  # noqa: SLF001  # the step that has to be interrupted
    calls = []

    def joined_by_another_first(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            monkeypatch.setattr(maintenance, "_join", join)
            maintenance.compact(opened(table))
        return join(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance, "_join", joined_by_another_first)
    with pytest.raises(Conflict):
        maintenance.compact(opened(table))
    assert archived(table) == pairs(0, range(90)) + pairs(1, range(90))
    assert len(list(table.rglob("*.parquet"))) == 15 + 2, "what the second one wrote is gone"


def test_old_records_go_from_the_start_of_each_partition(table: Path, storage: BareStorage, topic: Topic) -> None:
    before = datetime.fromtimestamp((DAY + 40) / 1000, UTC)
    assert maintenance.expire(opened(table), before=before) == (6, 72)
    assert archived(table) == pairs(0, range(36, 90)) + pairs(1, range(36, 90))
    assert LakeTable(table.as_uri(), str(topic.id)).refresh() == {0: Archived(36, 90), 1: Archived(36, 90)}
    # What the archive has is not archived again.
    assert Archiver(storage, topic, table).archive((0, 0, 100), (1, 0, 100)) == 20
    assert archived(table) == pairs(0, range(36, 100)) + pairs(1, range(36, 100))


def aged(table: Path, hours: float, chosen: Callable[[Path], bool] = lambda _: True) -> None:
    then = time.time() - hours * 3600
    for path in table.rglob("*.parquet"):
        if chosen(path):
            os.utime(path, (then, then))


def test_vacuum_deletes_unlisted_files_and_nothing_else(table: Path, tmp_path: Path) -> None:
    orphan = next(table.rglob("*.parquet")).with_name("orphan.parquet")
    orphan.write_bytes(b"of a batch that was never committed")
    aged(table, 3)
    young = orphan.with_name("young.parquet")
    young.write_bytes(b"about to be committed")
    (table / "_unreadable").mkdir()
    kept_aside = table / "_unreadable" / "t-0-5.batch"
    kept_aside.write_bytes(b"x")
    maintenance.compact(opened(table))
    assert maintenance.vacuum(opened(table), older_than_h=2, dry_run=True) == [str(orphan.relative_to(table))]
    assert orphan.exists()
    assert maintenance.vacuum(opened(table), older_than_h=2, spare=[str(orphan.relative_to(table))]) == []
    assert maintenance.vacuum(opened(table), older_than_h=2) == [str(orphan.relative_to(table))]
    assert not orphan.exists()
    # The fifteen that were joined were listed until just now.
    assert len(list(table.rglob("*.parquet"))) == 15 + 2 + 1
    assert len(maintenance.vacuum(opened(table), older_than_h=0)) == 15 + 1
    assert archived(table) == pairs(0, range(90)) + pairs(1, range(90))
    assert kept_aside.exists()
