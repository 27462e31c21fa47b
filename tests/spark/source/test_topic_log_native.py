"""Spark on native topics: offsets with gaps, entries of anybody."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from tests.harness.storage import BareStorage
from tests.spark.conftest import run_out

from headrace.client.errors import DataLoss
from headrace.client.offsets import Extent, Range, TopicPartition
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.storage.layout.native import offset_at
from headrace.topics.model import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def link(storage: BareStorage) -> Iterator[Any]:
    with redis.Redis.from_url(storage.url) as client:
        yield client


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    return storage.create_native_topic(request.node.name)


def fill(link: Any, topic: Topic, count: int, first_ms: int = 1_000) -> list[int]:
    """Entries 10 ms apart; their offsets."""
    stream = topic.streams[0]
    return [
        offset_at(link.xadd(stream, {"key": f"k{n}", "value": f"v{n}"}, id=f"{first_ms + 10 * n}-{n % 3}"))
        for n in range(count)
    ]


def test_extents_and_ranges(storage: BareStorage, topic: Topic, link: Any) -> None:
    with LogReader(storage.url) as log:
        known, p0 = log.topics(Subscription(names=(topic.name,))), TopicPartition(topic.name, 0)
        assert log.extents(known) == {p0: Extent(0, 0)}
        offsets = fill(link, topic, 100)
        assert log.extents(known) == {p0: Extent(0, offsets[-1] + 1)}
        for start, end in ((0, offsets[-1] + 1), (offsets[3], offsets[50]), (offsets[3] + 1, offsets[4])):
            batches = log.records(topic.streams[0], Range(TopicPartition(topic.name, 0), start, end))
            found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
            assert found == [offset for offset in offsets if start <= offset < end]


def test_a_batch_of_so_many_records_is_cut_by_records(storage: BareStorage, topic: Topic, link: Any) -> None:
    offsets = fill(link, topic, 50)
    with LogReader(storage.url) as log:
        known, p0 = log.topics(Subscription(names=(topic.name,))), TopicPartition(topic.name, 0)
        assert log.limited(known, {p0: 0}, {p0: offsets[-1] + 1}, 7) == {p0: offsets[6] + 1}
        assert log.limited(known, {p0: offsets[6] + 1}, {p0: offsets[-1] + 1}, 100) == {p0: offsets[-1] + 1}
        assert log.behind_gaps(known, {p0: 0}, {p0: offsets[-1] + 1}) == {p0: offsets[0]}


def test_a_concurrent_trim_is_data_loss(storage: BareStorage, topic: Topic, link: Any) -> None:
    offsets = fill(link, topic, 10)
    link.xtrim(topic.streams[0], maxlen=3, approximate=False)
    with LogReader(storage.url) as log:
        p0 = TopicPartition(topic.name, 0)
        assert log.extents(log.topics(Subscription(names=(topic.name,)))) == {p0: Extent(offsets[7], offsets[-1] + 1)}
        with pytest.raises(DataLoss):
            list(log.records(topic.streams[0], Range(TopicPartition(topic.name, 0), offsets[2], offsets[9])))
        kept = log.records(
            topic.streams[0], Range(TopicPartition(topic.name, 0), offsets[2], offsets[9]), fail_on_data_loss=False
        )
        assert [offset for batch in kept for offset in batch.column("offset").to_pylist()] == offsets[7:9]


@pytest.mark.spark
def test_batch_and_stream_reads(spark: "SparkSession", storage: BareStorage, topic: Topic, link: Any) -> None:
    offsets = fill(link, topic, 200)
    link.xadd(topic.streams[0], {"temperature": "21", "room": "kitchen"}, id="900000-0")
    reader = spark.read.format("headrace").option("redis", storage.url).option("subscribe", topic.name)
    rows = reader.option("minPartitions", "4").load().select("offset", "value").collect()
    assert sorted(row.offset for row in rows) == [*offsets, 900_000 << 10]
    assert {bytes(row.value) for row in rows} >= {b"v0", b"v199", b'{"temperature":"21","room":"kitchen"}'}

    batches: list[int] = []
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = spark.readStream.format("headrace").option("redis", storage.url).option("subscribe", topic.name)
        frame = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "60").load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.count()))
        run_out(writer.option("checkpointLocation", checkpoint))
    assert batches == [60, 60, 60, 21]


@pytest.mark.spark
def test_the_archive(spark: "SparkSession", storage: BareStorage, topic: Topic, link: Any) -> None:
    from deltalake import DeltaTable  # noqa: PLC0415

    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415

    offsets = fill(link, topic, 30)
    with tempfile.TemporaryDirectory() as folder:
        table = str(Path(folder) / "t")
        settings = ArchiveSettings(topics=(topic.name,), table=table, redis=storage.url, max_rows=12)
        assert run(settings, once=True, spark=spark).rows == 30
        offsets += fill(link, topic, 5, 90_000)
        assert run(settings, once=True, spark=spark).rows == 5
        found = DeltaTable(table).to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
        assert sorted(found) == offsets
