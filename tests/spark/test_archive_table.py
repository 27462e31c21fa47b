"""The archive's batches on real tables and a real log, without Spark: a batch is written in this process."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver, archived, pairs

from headrace.client.errors import CorruptLog, DataLoss, GroupCommitFailed, TableError
from headrace.client.offsets import TopicPartition
from headrace.lakehouse.read.table import LakeTable
from headrace.lakehouse.write.batch import ArchiveGap
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import COLUMNS, ArchiveTable, Conflict
from headrace.records.build import build
from headrace.records.markers import Marker, build_marker
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.archive.targets import Registrar, Targets
from headrace.spark.source.redis_log import LogReader
from headrace.topics.archive import Archived, app_id, begin_id
from headrace.topics.model import Topic

from .conftest import DAY, records


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    """Two partitions of 100 records each, in batches of 10."""
    created = storage.create_topic(request.node.name.replace("[", "-").rstrip("]"), partitions=2)
    for partition in (0, 1):
        for first in range(0, 100, 10):
            storage.append(created, partition, records(10, first))
    return created


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def test_a_batch_is_one_commit_of_files_and_fences(storage: BareStorage, topic: Topic, table: Path) -> None:
    archiver = Archiver(storage, topic, table)
    assert archiver.archive((0, 0, 100), (1, 0, 33)) == 133
    assert archived(table) == pairs(0, range(100)) + pairs(1, range(33))
    found = DeltaTable(table)
    assert found.version() == 1
    assert [found.transaction_version(app_id(str(topic.id), number)) for number in (0, 1)] == [100, 33]
    assert archiver.group.commits == [{0: 100, 1: 33}]


def test_a_table_has_committed_records_only(storage: BareStorage, table: Path) -> None:
    """Markers, and the records of aborted transactions, are gaps in the offsets of a table. They are no data loss."""
    topic = storage.create_topic("in-transactions")

    def send(producer: int, sequence: int) -> None:
        made = build(records(2), producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
        storage.append_batch(topic, 0, bytes(made))

    def end(producer: int, *, commit: bool) -> None:
        storage.append_batch(topic, 0, bytes(build_marker(Marker(producer, 0, commit, 1), DAY)))

    send(1, 0)  # 0, 1
    send(2, 0)  # 2, 3
    storage.append(topic, 0, records(1))  # 4
    archiver, partition = Archiver(storage, topic, table), TopicPartition(topic.name, 0)
    assert archiver.extents()[partition].end == 0
    end(1, commit=False)  # 5
    assert archiver.extents()[partition].end == 2
    assert archiver.archive((0, 0, 2)) == 0
    end(2, commit=True)  # 6
    send(1, 2)  # 7, 8
    assert archiver.extents()[partition].end == 7
    assert DeltaTable(table).transaction_version(begin_id(str(topic.id), 0)) == 0
    assert archiver.archive((0, 2, 7)) == 3
    assert DeltaTable(table).transaction_version(begin_id(str(topic.id), 0)) == 0
    assert LakeTable(table.as_uri(), str(topic.id)).refresh() == {0: Archived(0, 7)}
    assert archived(table) == pairs(0, range(2, 5))
    with pytest.raises(DataLoss, match="an open transaction begins there"):
        archiver.archive((0, 7, 9))


def test_rows_keep_everything(storage: BareStorage, table: Path) -> None:
    topic = storage.create_topic("kept")
    storage.append(topic, 0, [(None, b"", DAY, (("a", b"1"), ("a", None))), (b"", None, DAY + 1, ())], codec=1)
    Archiver(storage, topic, table).archive((0, 0, 2))
    first, second = DeltaTable(table).to_pyarrow_table().sort_by("offset").to_pylist()
    assert (first["key"], first["value"], second["key"], second["value"]) == (None, b"", b"", None)
    assert (first["topic"], first["partition"], first["topicId"]) == ("kept", 0, str(topic.id))
    assert (first["timestamp"].timestamp() * 1000, first["timestampType"]) == (DAY, 0)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert not second["headers"]
    assert DeltaTable(table).to_pyarrow_table().schema.names == COLUMNS.names


def test_a_file_says_which_offsets_and_times_it_has(storage: BareStorage, topic: Topic, table: Path) -> None:
    Archiver(storage, topic, table).archive((0, 0, 60), (1, 0, 10))
    actions = pa.table(DeltaTable(table).get_add_actions(flatten=True)).sort_by("min.partition").to_pylist()
    assert [(row["num_records"], row["min.partition"], row["min.offset"], row["max.offset"]) for row in actions] == [
        (60, 0, 0, 59),
        (10, 1, 0, 9),
    ]
    assert [row["max.timestamp"].timestamp() * 1000 for row in actions] == [DAY + 59, DAY + 9]
    # Readers prune by them and read the files in offset order.
    found = (
        DeltaTable(table)
        .to_pyarrow_dataset()
        .to_table(filter=(ds.field("partition") == 0) & (ds.field("offset") >= 58))
    )
    assert found.column("offset").to_pylist() == [58, 59]


def test_what_the_table_has_is_dropped_from_a_batch(storage: BareStorage, topic: Topic, table: Path) -> None:
    archiver = Archiver(storage, topic, table)
    archiver.archive((0, 0, 50))
    assert archiver.archive((0, 0, 50)) == 0
    assert archiver.archive((0, 20, 70), (1, 0, 10)) == 30
    assert archived(table) == pairs(0, range(70)) + pairs(1, range(10))


def test_other_batch_sizes_after_a_lost_checkpoint_lose_nothing(
    storage: BareStorage, topic: Topic, table: Path
) -> None:
    archiver = Archiver(storage, topic, table)
    for start in range(0, 80, 20):
        archiver.archive((0, start, start + 20))
    for start in range(0, 100, 30):
        archiver.archive((0, start, min(100, start + 30)))
    assert archived(table) == pairs(0, range(100))


@pytest.mark.parametrize("point", ["started", "files written", "table committed"])
def test_a_kill_at_any_step_loses_and_duplicates_nothing(
    storage: BareStorage, topic: Topic, table: Path, point: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(step: str) -> None:
        if step == point:
            raise Killed

    with pytest.raises(Killed):
        Archiver(storage, topic, table, step=kill).archive((0, 0, 40), (1, 0, 40))
    after = Archiver(storage, topic, table)
    after.archive((0, 0, 100), (1, 0, 100))
    assert archived(table) == pairs(0, range(100)) + pairs(1, range(100))
    assert after.group.commits == [{0: 100, 1: 100}]


def test_of_two_archivers_with_one_batch_one_wins(storage: BareStorage, topic: Topic, table: Path) -> None:
    quick = Archiver(storage, topic, table)

    def race(step: str) -> None:
        if step == "files written" and not archived(table):
            quick.archive((0, 0, 60), (1, 0, 100))

    slow = Archiver(storage, topic, table, step=race)

    # The quick one commits between the slow one's files and its commit, and has got less far in partition 0.
    assert slow.archive((0, 0, 90), (1, 0, 90)) == 30
    assert archived(table) == pairs(0, range(90)) + pairs(1, range(100))
    assert slow.group.commits == [{0: 90, 1: 100}]
    referenced = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    assert {path.name for path in table.rglob("*.parquet")} == referenced


def test_archivers_of_different_topics_share_a_table(storage: BareStorage, topic: Topic, table: Path) -> None:
    other = storage.create_topic("beside")
    storage.append(other, 0, records(7))
    first = Archiver(storage, topic, table)

    def race(step: str) -> None:
        if step == "files written" and not archived(table):
            first.archive((0, 0, 10))

    second = Archiver(storage, other, table, step=race)
    assert second.archive((0, 0, 7)) == 7
    assert archived(table) == sorted(pairs(0, range(10)) + pairs(0, range(7)))


def test_the_table_of_another_topic_needs_permission_and_is_reported_once(
    storage: BareStorage, topic: Topic, table: Path
) -> None:
    storage.append(topic, 0, records(5))
    Archiver(storage, topic, table).archive((0, 0, 5))
    other = storage.create_topic(f"{topic.name}-other")

    def said(name: str, *, share: bool = False, schema: str | None = None) -> list[str]:
        told: list[str] = []
        settings = ArchiveSettings(
            table=str(table), redis=storage.url, topics=(name,), share_table=share, schema=schema
        )
        targets = Targets(settings, LogReader(storage.url), Registrar(storage.url), told.append)
        for _ in range(2):
            targets.current()
            targets.clear()
        return told

    assert said(topic.name) == []
    with pytest.raises(TableError, match=f"{table} belongs to topic {topic.name!r}: .* --share-table"):
        said(other.name)
    [careful] = said(other.name, share=True)
    assert careful.startswith(f"careful: {table} has records of {topic.name!r} as well")
    # Dead letters are records of a topic, too.
    assert said(topic.name, schema="json") == []
    table = table.with_name(f"{table.name}_dlq")
    with pytest.raises(TableError, match=f"{table} belongs to topic {topic.name!r}"):
        said(other.name)


def test_a_stale_snapshot_cannot_commit(storage: BareStorage, topic: Topic, table: Path) -> None:
    archive = ArchiveTable(Place.of(str(table)))
    stale, fresh = ArchiveTable(Place.of(str(table))).snapshot(), archive.snapshot()
    fresh.commit("id", [], {0: 5})
    with pytest.raises(Conflict):
        stale.commit("id", [], {0: 9, 1: 9})
    assert archive.snapshot().fences("id", [0, 1]) == {0: 5}
    with pytest.raises(ValueError, match="would fall from 5 to 4"):
        archive.snapshot().commit("id", [], {0: 4})


def test_fences_survive_checkpoints_and_compaction(storage: BareStorage, topic: Topic, table: Path) -> None:
    archiver = Archiver(storage, topic, table)
    for offset in range(25):
        archiver.archive((0, offset, offset + 1))
    found = DeltaTable(table)
    found.create_checkpoint()
    found.optimize.compact()
    assert ArchiveTable(Place.of(str(table))).snapshot().fences(str(topic.id), [0, 1]) == {0: 25}
    assert archiver.archive((0, 0, 25), (1, 0, 1)) == 1
    assert archived(table) == pairs(0, range(25)) + pairs(1, range(1))


def test_a_checkpoint_ahead_of_the_table_is_refused(storage: BareStorage, topic: Topic, table: Path) -> None:
    archiver = Archiver(storage, topic, table)
    archiver.archive((0, 0, 20))
    with pytest.raises(ArchiveGap, match=r"offsets 20 to 29 .* are in the log but not in the table"):
        archiver.archive((0, 30, 40))
    with pytest.raises(ArchiveGap, match="offsets 0 to 9"):
        archiver.archive((1, 10, 40))
    assert archived(table) == pairs(0, range(20))
    assert len(list(table.rglob("*.parquet"))) == 1


def test_expired_records_are_skipped_only_if_configured(storage: BareStorage, topic: Topic, table: Path) -> None:
    Archiver(storage, topic, table).archive((0, 0, 20))
    storage.trim(topic, 0, 50)
    with pytest.raises(DataLoss):
        Archiver(storage, topic, table).archive((0, 20, 70))
    skipping = Archiver(storage, topic, table, skip_lost=True)
    assert skipping.archive((0, 50, 70)) == 20
    assert archived(table) == pairs(0, range(20)) + pairs(0, range(50, 70))
    with pytest.raises(ArchiveGap):
        skipping.archive((0, 80, 90))


def test_a_topic_created_again_is_archived_from_its_start(storage: BareStorage, table: Path) -> None:
    first = storage.create_topic("created-again")
    storage.append(first, 0, records(10))
    Archiver(storage, first, table).archive((0, 0, 10))
    storage.delete_topic(first)
    second = storage.create_topic("created-again")
    storage.append(second, 0, records(4))
    assert Archiver(storage, second, table).archive((0, 0, 4)) == 4
    ids = DeltaTable(table).to_pyarrow_table(columns=["topicId"]).column(0).to_pylist()
    assert (ids.count(str(first.id)), ids.count(str(second.id))) == (10, 4)


def test_the_table_keeps_offsets_that_the_group_could_not_commit(
    storage: BareStorage, topic: Topic, table: Path
) -> None:
    archiver = Archiver(storage, topic, table)

    def refuse(_offsets: Mapping[TopicPartition, int]) -> None:
        raise GroupCommitFailed("group 'g' was not committed")

    archiver.group.commit = refuse  # type: ignore[assignment, method-assign]
    assert archiver.archive((0, 0, 10)) == 10
    assert str(archiver.archiver.commit_group().group_error) == "group 'g' was not committed"
    after = Archiver(storage, topic, table)
    assert after.archiver.commit_group().group_error is None
    assert after.group.commits == [{0: 10}]


def test_paths_that_cannot_be_a_table(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("x")
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    for path, message in (
        ("file", "not a Delta table"),
        ("full", "not a Delta table"),
        ("other", "other columns"),
    ):
        with pytest.raises(TableError, match=message):
            ArchiveTable(Place.of(str(tmp_path / path)))
    with pytest.raises(TableError, match="ftp://x/y: tables lie in directories, or at s3://"):
        Place.of("ftp://x/y")


batches = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 100), st.integers(1, 60)), max_size=8)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches)
def test_no_row_is_duplicated_or_omitted_for_any_batches(
    storage: BareStorage, tmp_path: Path, wanted: list[tuple[int, int, int]]
) -> None:
    table = tmp_path / "table"
    shutil.rmtree(table, ignore_errors=True)
    topic = storage.create_topic(f"any-{tmp_path.name}-{hash(tuple(wanted))}", partitions=2)
    for partition in (0, 1):
        storage.append(topic, partition, records(100))
    archiver = Archiver(storage, topic, table)
    ends = {0: 0, 1: 0}
    for partition, start, length in wanted:
        end = min(100, start + length)
        if start <= ends[partition]:
            archiver.archive((partition, start, end))
            ends[partition] = max(ends[partition], end)
        elif start < end:
            with pytest.raises(ArchiveGap):
                archiver.archive((partition, start, end))
    assert archived(table) == pairs(0, range(ends[0])) + pairs(1, range(ends[1]))


def test_a_batch_that_cannot_be_read_is_set_aside_and_reported(storage: BareStorage, table: Path) -> None:
    topic = storage.create_topic("kept-aside")
    broken = build(records(3, 10))
    broken[70:] = b"\xff" * len(broken[70:])
    storage.append(topic, 0, records(10))
    storage.append_batch(topic, 0, bytes(broken))
    storage.append(topic, 0, records(10, 13))
    with pytest.raises(CorruptLog, match=r"kept-aside-0 has a batch that cannot be read.*--skip-unreadable"):
        Archiver(storage, topic, table).archive((0, 0, 23))
    archiver = Archiver(storage, topic, table, skip_unreadable=True)
    assert archiver.archive((0, 0, 23)) == 20
    assert archived(table) == [*pairs(0, range(10)), *pairs(0, range(13, 23))]
    [line] = archiver.unreadable
    assert "left out the batch at offset 10 of kept-aside-0" in line
    [kept] = (table / "_unreadable").iterdir()
    assert kept.read_bytes()[61:] == bytes(broken[61:])
    assert archiver.archive((0, 0, 23)) == 0, "it is not asked for again"
