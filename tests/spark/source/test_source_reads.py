"""`format("headrace")` in a real Spark: batch and streaming reads."""

import json
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from tests.harness.storage import BareStorage
from tests.spark.conftest import DAY, records, run_out

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Reads:
    """Reads of one storage, and what a stream brought in each batch."""

    def __init__(self, spark: "SparkSession", url: str) -> None:
        self.spark = spark
        self.url = url

    def batch(self, topic: str, **options: str) -> "DataFrame":
        reader = self.spark.read.format("headrace").option("redis", self.url).option("subscribe", topic)
        return reader.options(**options).load()

    def offsets(self, topic: str, **options: str) -> list[tuple[int, int]]:
        rows = self.batch(topic, **options).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in rows)

    def stream(self, checkpoint: str, topic: str, **options: str) -> list[list[tuple[int, int]]]:
        """Run until everything there is has been read; the (partition, offset) pairs of each batch."""
        batches: list[list[tuple[int, int]]] = []

        def collect(frame: "DataFrame", _batch_id: int) -> None:
            batches.append(sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect()))

        reader = self.spark.readStream.format("headrace").option("redis", self.url).option("subscribe", topic)
        writer = reader.options(**options).load().writeStream.foreachBatch(collect)
        query = run_out(writer.option("checkpointLocation", checkpoint))
        self.progress: list[dict[str, Any]] = [json.loads(progress.json) for progress in query.recentProgress]
        return batches


@pytest.fixture
def reads(spark: "SparkSession", storage: BareStorage) -> Reads:
    return Reads(spark, storage.url)


@pytest.fixture
def checkpoint() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory()


def pairs(**ranges: range) -> list[tuple[int, int]]:
    return [(int(name[1:]), offset) for name, offsets in sorted(ranges.items()) for offset in offsets]


def flat(batches: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return sorted(pair for batch in batches for pair in batch)


def test_the_columns_are_those_of_sparks_kafka_source(reads: Reads, storage: BareStorage) -> None:
    topic = storage.create_topic("columns")
    storage.append(topic, 0, [(b"k", None, DAY, (("h", b"1"),)), (None, b"v", DAY + 1, ())], codec=2)
    frame = reads.batch("columns", INCLUDEHEADERS="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic, first.partition, first.timestampType) == (b"k", None, "columns", 0, 0)
    assert (second.key, second.value, second.headers) == (None, b"v", None)
    assert [(header.key, header.value) for header in first.headers] == [("h", b"1")]
    assert frame.selectExpr("unix_millis(timestamp) AS ms").collect()[1].ms == DAY + 1
    assert "headers" not in reads.batch("columns").columns


def test_a_batch_read_takes_the_given_range(reads: Reads, storage: BareStorage) -> None:
    topic = storage.create_topic("bounds", partitions=2)
    for partition in (0, 1):
        for first in (0, 10, 20):
            storage.append(topic, partition, records(10, first))
    assert reads.offsets("bounds") == pairs(p0=range(30), p1=range(30))
    assert reads.offsets(
        "bounds",
        startingOffsets='{"bounds":{"0":23,"1":-2}}',
        endingOffsets='{"bounds":{"0":-1,"1":4}}',
    ) == pairs(p0=range(23, 30), p1=range(4))
    assert reads.offsets("bounds", minPartitions="7") == pairs(p0=range(30), p1=range(30))
    assert reads.batch("bounds", minPartitions="7").rdd.getNumPartitions() >= 6
    assert reads.offsets("bounds", startingOffsets='{"bounds":{"0":30,"1":30}}') == []


def test_lost_records_fail_a_batch_read_by_default(reads: Reads, storage: BareStorage) -> None:
    topic = storage.create_topic("lost")
    for first in range(0, 50, 10):
        storage.append(topic, 0, records(10, first))
    storage.trim(topic, 0, 25)
    told = {"startingOffsets": '{"lost":{"0":5}}'}
    with pytest.raises(Exception, match=r"offsets 5 to 24 of lost-0 are gone \(log start 25\)"):
        reads.offsets("lost", **told)
    assert reads.offsets("lost", failOnDataLoss="false", **told) == pairs(p0=range(25, 50))
    assert reads.offsets("lost") == pairs(p0=range(25, 50))


def test_mistakes_are_reported_before_anything_runs(reads: Reads, storage: BareStorage) -> None:
    storage.create_topic("mistakes")
    for options, message in (
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset' of format 'headrace'"),
        ({"kafka.ssl.truststore.typ": "PEM"}, "did you mean 'kafka.ssl.truststore.type'"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
    ):
        with pytest.raises(Exception, match=message):
            reads.batch("mistakes", **options)
    with pytest.raises(Exception, match="no topic 'nowhere'"):
        reads.offsets("nowhere")


def test_spark_sql_finds_the_format_by_itself(reads: Reads, storage: BareStorage) -> None:
    topic = storage.create_topic("sql")
    storage.append(topic, 0, records(3))
    reads.spark.sql(f"CREATE TEMPORARY VIEW from_sql USING headrace OPTIONS (redis '{storage.url}', subscribe 'sql')")
    try:
        assert reads.spark.sql("SELECT max(offset) AS last FROM from_sql").collect()[0].last == 2
    finally:
        reads.spark.catalog.dropTempView("from_sql")


def test_a_stream_continues_at_its_checkpoint(
    reads: Reads, storage: BareStorage, checkpoint: "tempfile.TemporaryDirectory[str]"
) -> None:
    topic = storage.create_topic("goes-on", partitions=2)
    for partition, count in ((0, 90), (1, 10)):
        storage.append(topic, partition, records(count))
    with checkpoint as folder:
        batches = reads.stream(folder, topic.name, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        assert [len(batch) for batch in batches] == [40, 40, 20]
        assert batches[0] == pairs(p0=range(36), p1=range(4))
        assert flat(batches) == pairs(p0=range(90), p1=range(10))
        assert reads.progress[-1]["sources"][0]["endOffset"] == {"goes-on": {"0": 90, "1": 10, "id": str(topic.id)}}
        assert reads.progress[-1]["sources"][0]["latestOffset"] == {"goes-on": {"0": 90, "1": 10, "id": str(topic.id)}}
        grown = storage.add_partition(topic)
        storage.append(grown, 0, records(5, 90))
        storage.append(grown, 2, records(3))
        # Starting offsets are for new queries only; the new partition is read from its start.
        assert flat(reads.stream(folder, topic.name, startingOffsets="latest")) == pairs(p0=range(90, 95), p2=range(3))
        assert flat(reads.stream(folder, topic.name)) == []


def test_a_stream_that_fell_behind_retention_fails_by_default(
    reads: Reads, storage: BareStorage, checkpoint: "tempfile.TemporaryDirectory[str]"
) -> None:
    topic = storage.create_topic("behind")
    storage.append(topic, 0, records(10))
    with checkpoint as folder:
        reads.stream(folder, "behind", startingOffsets="earliest")
        storage.append(topic, 0, records(10, 10))
        storage.append(topic, 0, records(10, 20))
        storage.trim(topic, 0, 20)
        with pytest.raises(Exception, match="offsets 10 to 19 of behind-0 are gone"):
            reads.stream(folder, "behind")
        assert flat(reads.stream(folder, "behind", failOnDataLoss="false")) == pairs(p0=range(20, 30))
