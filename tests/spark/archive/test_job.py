"""The archive as a Spark job, and the command. What a batch does by itself is in test_archive_table."""

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.harness.archive import told_of
from tests.harness.storage import BareStorage
from tests.spark.conftest import records

from headrace.metrics.runs import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.archive import ArchiveSettings

pytestmark = pytest.mark.spark


def archived(table: Path) -> list[tuple[int, int]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


def everything(partitions: int, count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


def settings_for(storage: BareStorage, topic: str, table: Path, **more: object) -> "ArchiveSettings":
    from headrace.spark.archive import ArchiveSettings  # noqa: PLC0415

    return ArchiveSettings(topics=(topic,), table=str(table), redis=storage.url, **more)  # type: ignore[arg-type]


def test_once_archives_everything_there_is(spark: "SparkSession", storage: BareStorage, scratch: Path) -> None:
    from headrace.spark.archive import Progress, run  # noqa: PLC0415

    topic = storage.create_topic("job-once", partitions=3)
    for partition in range(3):
        storage.append(topic, partition, records(500))
    seen: list[Progress] = []
    first = run(
        settings_for(storage, "job-once", scratch / "t", max_rows=600), once=True, spark=spark, on_progress=seen.append
    )
    assert (first.rows, first.lag, first.topics["job-once"].fences) == (1500, 0, {0: 500, 1: 500, 2: 500})
    assert [progress.lag for progress in seen] == [1500, 900, 300, 0]
    told = told_of(storage.url, "job-once")
    assert (told.state, told.rows, told.lag, told.unreadable) == (State.DONE, 1500, 0, 0)
    assert [commit.rows for commit in told.commits] == [600, 600, 300]
    assert (told.topic_id, told.ends) == (str(topic.id), {0: 500, 1: 500, 2: 500})
    assert told.files == len(DeltaTable(scratch / "t").file_uris())
    assert told.fresh_ms is not None
    storage.append(topic, 1, records(5, 500))
    # No checkpoint was kept: the table says where to go on.
    second = run(settings_for(storage, "job-once", scratch / "t"), once=True, spark=spark)
    assert (second.rows, second.lag) == (5, 0)
    assert archived(scratch / "t") == sorted([*everything(3, 500), *((1, offset) for offset in range(500, 505))])
    frame = spark.read.parquet(*DeltaTable(scratch / "t").file_uris())
    assert frame.selectExpr("count(DISTINCT partition, offset) AS n").collect()[0].n == 1505


def test_a_checkpoint_may_be_kept_lost_or_wrong(spark: "SparkSession", storage: BareStorage, scratch: Path) -> None:
    from headrace.lakehouse.write.batch import ArchiveGap  # noqa: PLC0415
    from headrace.spark.archive import run  # noqa: PLC0415

    topic = storage.create_topic("job-checkpoint")
    kept = settings_for(storage, "job-checkpoint", scratch / "t", checkpoint=str(scratch / "c"))
    storage.append(topic, 0, records(10))
    run(kept, once=True, spark=spark)
    storage.append(topic, 0, records(10, 10))
    assert run(kept, once=True, spark=spark).rows == 10
    storage.append(topic, 0, records(10, 20))
    elsewhere = settings_for(storage, "job-checkpoint", scratch / "new", checkpoint=str(scratch / "c"))
    with pytest.raises(ArchiveGap, match="offsets 0 to 19 of job-checkpoint-0"):
        run(elsewhere, once=True, spark=spark)
    assert archived(scratch / "t") == everything(1, 20)


def test_a_running_archive_follows_the_log_also_through_a_new_topic(
    spark: "SparkSession", storage: BareStorage, scratch: Path
) -> None:
    from headrace.spark.archive import Progress, start  # noqa: PLC0415

    moved = threading.Condition()
    reached = 0

    def notice(progress: Progress) -> None:
        nonlocal reached
        with moved:
            reached = progress.rows
            moved.notify_all()

    def wait_for(rows: int) -> None:
        with moved:
            assert moved.wait_for(lambda: reached == rows, timeout=240), reached

    topic = storage.create_topic("job-follows")
    archive = start(
        settings_for(storage, "job-follows", scratch / "t", trigger_s=0.01), spark=spark, on_progress=notice
    )
    try:
        storage.append(topic, 0, records(10))
        wait_for(10)
        storage.append(topic, 0, records(10, 10))
        wait_for(20)
        again = storage.replace_topic(topic)
        storage.append(again, 0, records(3))
        wait_for(23)
    finally:
        archive.stop()
    assert archived(scratch / "t") == sorted(everything(1, 20) + everything(1, 3))
    assert archive.wait(0)


def test_topics_and_partitions_that_come_later_are_archived_by_the_running_job(
    spark: "SparkSession", storage: BareStorage, scratch: Path
) -> None:
    from headrace.spark.archive import ArchiveSettings, Progress, start  # noqa: PLC0415

    moved = threading.Condition()
    seen: list[Progress] = []
    notes: list[str] = []

    def notice(progress: Progress) -> None:
        with moved:
            seen.append(progress)
            moved.notify_all()

    def wait_for(rows: int) -> None:
        with moved:
            assert moved.wait_for(lambda: seen[-1].rows == rows, timeout=240), seen[-1]

    first, second = storage.create_topic("many.a"), storage.create_topic("many.b", partitions=2)
    storage.append(storage.create_topic("one.a"), 0, records(5))
    storage.append(first, 0, records(10))
    settings = ArchiveSettings(pattern="many[.].*", table=str(scratch / "{topic}"), redis=storage.url, trigger_s=0.01)
    archive = start(settings, spark=spark, on_progress=notice, on_note=notes.append)
    queries = archive.queries
    try:
        wait_for(10)
        storage.append(second, 1, records(4))
        wait_for(14)
        grown = storage.add_partition(first)
        storage.append(grown, 1, records(3))
        wait_for(17)
        third = storage.create_topic("many.c")
        storage.append(third, 0, records(2))
        wait_for(19)
        assert (archive.queries, queries) == (1, 0) or archive.queries == queries == 1, "all of it in one query"
        # A topic that goes leaves its table; the others go on.
        storage.delete_topic(second)
        storage.append(third, 0, records(2, 2))
        wait_for(21)
    finally:
        archive.drain()
    assert archive.wait(0)
    assert archived(scratch / "many.a") == sorted([*everything(1, 10), (1, 0), (1, 1), (1, 2)])
    assert archived(scratch / "many.b") == [(1, offset) for offset in range(4)]
    assert archived(scratch / "many.c") == everything(1, 4)
    assert sorted(path.name for path in scratch.iterdir()) == ["many.a", "many.b", "many.c"]
    assert "many.b: deleted; the table stays as it is" in notes
    # Clients that read tiered records get their location.
    document = storage.archive(third)
    assert (document.topic, document.archived) == ("many.c", {0: 4})
    assert document.table == (scratch / "many.c").as_uri()


def test_two_archives_of_the_same_topic_lose_and_double_nothing(
    spark: "SparkSession", storage: BareStorage, scratch: Path
) -> None:
    from headrace.spark.archive import start  # noqa: PLC0415

    topic = storage.create_topic("job-two", partitions=2)
    both = [start(settings_for(storage, "job-two", scratch / "t", trigger_s=0.01), spark=spark) for _ in range(2)]
    try:
        for first in range(0, 200, 20):
            for partition in (0, 1):
                storage.append(topic, partition, records(20, first))
        deadline = time.monotonic() + 240
        while len(archived(scratch / "t")) < 400 and time.monotonic() < deadline:
            assert not any(archive.wait(0.05) for archive in both)
    finally:
        for archive in both:
            archive.drain()
    assert archived(scratch / "t") == everything(2, 200)
    assert sum(archive.progress.rows for archive in both) == 400


def test_an_error_that_stops_an_archive_is_one_line(spark: "SparkSession", storage: BareStorage, scratch: Path) -> None:
    from headrace.client.errors import DataLoss, StorageUnavailable, UnknownTopic  # noqa: PLC0415
    from headrace.spark.archive import run  # noqa: PLC0415

    with pytest.raises(UnknownTopic, match="no topic 'job-nowhere'"):
        run(settings_for(storage, "job-nowhere", scratch / "t"), once=True, spark=spark)
    with pytest.raises(StorageUnavailable, match=r"redis://127\.0\.0\.1:1"):
        run(settings_for(BareStorage("redis://127.0.0.1:1/0"), "x", scratch / "t"), once=True, spark=spark)
    topic = storage.create_topic("job-lost")
    storage.append(topic, 0, records(10))
    run(settings_for(storage, "job-lost", scratch / "t"), once=True, spark=spark)
    storage.append(topic, 0, records(10, 10))
    storage.append(topic, 0, records(10, 20))
    storage.trim(topic, 0, 20)
    with pytest.raises(DataLoss, match=r"^offsets 10 to 19 of job-lost-0 are gone") as lost:
        run(settings_for(storage, "job-lost", scratch / "t"), once=True, spark=spark)
    assert "\n" not in str(lost.value)
    assert run(settings_for(storage, "job-lost", scratch / "t", skip_lost=True), once=True, spark=spark).rows == 10
