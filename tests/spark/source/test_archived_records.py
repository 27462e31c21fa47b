"""Records that are in the archive only, read with those that are in Redis, by driver and tasks."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import redis
from tests.harness.archive import Archiver
from tests.harness.storage import BareStorage
from tests.harness.wire import Wire, opened
from tests.harness.wire import batch as wire_batch
from tests.spark.conftest import DAY, records

from headrace.client.errors import DataLoss, StorageUnavailable
from headrace.client.offsets import Extent, Range, TopicPartition
from headrace.records.arrow import schema
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.storage.layout import archives
from headrace.storage.layout.keys import Keyspace
from headrace.testing import InProcessServer
from headrace.topics.archive import STARTS, start_id
from headrace.topics.model import Topic

from .test_source_reads import Reads, checkpoint, flat, reads  # noqa: F401  # fixtures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cold:
    """A topic of 200 records of which the first 120 are in the archive only."""

    def __init__(self, storage: BareStorage, name: str, folder: Path) -> None:
        self.storage = storage
        self.topic: Topic = storage.create_topic(name, remote_storage_enable="true")
        self.place = TopicPartition(name, 0)
        for first in range(0, 200, 10):
            storage.append(self.topic, 0, [*records(9, first), (None, b"", DAY + first + 9, (("h", None),))])
        self.archiver = Archiver(storage.url, name, folder / "table")
        self.archiver.archive(160, rows_per_file=50, group=16)
        self.begin(0)
        storage.trim(self.topic, 0, 120)

    def begin(self, offset: int) -> None:
        """What a server writes down before the first record goes."""
        with redis.Redis.from_url(self.storage.url) as connection:
            connection.hset(Keyspace().documents(STARTS), start_id(str(self.topic.id), 0), offset)

    def rows(self, start: int, end: int, *, fail: bool = True) -> pa.Table:
        with LogReader(self.storage.url) as log:
            found = log.records(
                self.topic.streams[0], Range(self.place, start, end), include_headers=True, fail_on_data_loss=fail
            )
            return pa.Table.from_batches(found, schema(include_headers=True))

    def offsets(self, start: int, end: int, *, fail: bool = True) -> list[int]:
        found: list[int] = self.rows(start, end, fail=fail)["offset"].to_pylist()
        return found


@pytest.fixture
def cold(storage: BareStorage, tmp_path: Path, request: pytest.FixtureRequest) -> Cold:
    return Cold(storage, request.node.name.replace("_", "-"), tmp_path)


def test_rows_are_the_same_on_both_sides_of_the_border(cold: Cold) -> None:
    rows = cold.rows(3, 200).to_pylist()
    assert [row["offset"] for row in rows] == [*range(3, 200)]
    for row in rows:
        number = row["offset"]
        last = number % 10 == 9
        assert row["key"] == (None if last else b"k%d" % number)
        assert row["value"] == (b"" if last else b"v%d" % number)
        assert row["headers"] == ([{"key": "h", "value": None}] if last else None)
        assert (row["topic"], row["partition"], row["timestampType"]) == (cold.topic.name, 0, 0)
        assert row["timestamp"].timestamp() * 1000 == pytest.approx(DAY + number)
    assert cold.offsets(40, 60) == [*range(40, 60)]


def test_the_log_begins_where_the_archive_does(cold: Cold) -> None:
    with LogReader(cold.storage.url) as log:
        topics = log.topics(Subscription(names=(cold.topic.name,)))
        assert log.extents(topics) == {cold.place: Extent(0, 200)}
        times = {cold.place: DAY + 77}
        assert log.offsets_at(topics, times) == {cold.place: 77}
        assert log.offsets_at(topics, {cold.place: DAY + 150}) == {cold.place: 150}
        # Files of the archive are not shared by the task that reads Redis.
        assert log.cut(topics, [Range(cold.place, 0, 100)]) == [Range(cold.place, 0, 100)]
        pieces = log.cut(topics, [Range(cold.place, 10, 190)])
        assert pieces == [Range(cold.place, 10, 120), Range(cold.place, 120, 190)]
        cold.begin(33)
        topics = log.topics(Subscription(names=(cold.topic.name,)))
        assert log.extents(topics) == {cold.place: Extent(33, 200)}


def test_records_that_expire_while_a_task_reads_come_from_the_archive(cold: Cold) -> None:
    with LogReader(cold.storage.url) as log:
        found: list[int] = []
        for batch in log.records(cold.topic.streams[0], Range(cold.place, 0, 200)):
            found += batch.column("offset").to_pylist()
            cold.storage.trim(cold.topic, 0, 155)
        assert found == [*range(200)]


def test_lost_means_gone_from_both(cold: Cold) -> None:
    cold.storage.trim(cold.topic, 0, 180)  # beyond the archived records, by another client
    with pytest.raises(StorageUnavailable, match="ends at offset 160"):
        cold.offsets(150, 200)
    with redis.Redis.from_url(cold.storage.url) as connection:
        connection.hdel(Keyspace().documents(archives.KIND), str(cold.topic.id))
    Archiver(cold.storage.url, cold.topic.name, cold.archiver.table.with_name("later")).archive(200)
    with pytest.raises(DataLoss, match="are gone, from the log and from the archive"):
        cold.offsets(150, 200)
    assert cold.offsets(150, 200, fail=False) == [*range(180, 200)]


def test_a_missing_table_is_reported(cold: Cold) -> None:
    cold.archiver.table.rename(cold.archiver.table.with_name("away"))
    with pytest.raises(StorageUnavailable, match=r"the archive file:///.*table cannot be read"):
        cold.offsets(100, 130, fail=False)
    assert cold.offsets(120, 130) == [*range(120, 130)]


@pytest.mark.spark
def test_spark_reads_across_the_border(cold: Cold, reads: Reads, tmp_path: Path) -> None:  # noqa: F811
    name = cold.topic.name
    everything = [(0, offset) for offset in range(200)]
    assert reads.offsets(name) == everything
    assert reads.batch(name, minPartitions="4").rdd.getNumPartitions() > 4
    assert reads.offsets(name, startingTimestamp=str(DAY + 50), endingTimestamp=str(DAY + 130)) == everything[50:130]
    batches = reads.stream(str(tmp_path / "checkpoint"), name, startingOffsets="earliest", maxOffsetsPerTrigger="70")
    assert (flat(batches), [len(batch) for batch in batches]) == (everything, [70, 70, 60])


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_archived_trimmed_and_read_back(spark: "SparkSession", tmp_path: Path) -> None:
    """The whole way: a server, the archive, retention, and what a Kafka client and Spark read then."""
    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415

    with InProcessServer(headrace_cache_bytes=0) as server:
        with Wire(server.kafka) as wire:
            wire.create("whole", remote_storage_enable="true", retention_ms=-1, local_retention_ms=1)
            for number in range(30):
                made = wire_batch(*[b"%d" % (number * 10 + n) for n in range(10)], timestamp=DAY + number * 10, step=1)
                assert wire.produce("whole", made).error_code == 0
        settings = ArchiveSettings(topics=("whole",), table=str(tmp_path / "table"), redis=server.storage)
        rows = 0
        while rows < 300:  # what is acknowledged may come to Redis a moment later
            rows += run(settings, once=True, spark=spark).rows
        while True:
            server.clock.advance(minutes=6)
            with Wire(server.kafka) as wire:
                if wire.offset("whole", -4, version=8).offset == 300:
                    break
        with Wire(server.kafka) as wire:
            assert wire.offset("whole", -2).offset == 0
            found = opened(wire.fetch("whole", 0).records)
        assert [(one.offset, one.timestamp, one.value) for one in found] == [
            (n, DAY + n, b"%d" % n) for n in range(300)
        ]
        for place in ({"redis": server.storage}, {"kafka.bootstrap.servers": server.kafka}):
            frame = spark.read.format("headrace").options(subscribe="whole", **place).load()
            assert sorted(row.offset for row in frame.select("offset").collect()) == [*range(300)]
