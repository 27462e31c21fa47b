"""The readers of committed records agree, whichever way they read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.visiting import create
from tests.harness.interleaving import interleaved
from tests.harness.waiting import wait_for
from tests.oci.conftest import COMPARTMENT, Api

from headrace.client import fetch
from headrace.client.offsets import Range, TopicPartition
from headrace.client.options import parse
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Log, Subscription
from headrace.testing import InProcessServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="off") as started:
        yield started


def values(log: Log, topic: str) -> list[bytes]:
    """All records of partition 0, as a batch query reads them."""
    partition = TopicPartition(topic, 0)
    topics = log.topics(Subscription(names=(topic,)))
    found = log.extents(topics)[partition]
    batches = log.records(topics[topic].stream(0), Range(partition, found.start, found.end))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def from_redis(server: InProcessServer, topic: str) -> list[bytes]:
    with LogReader(server.storage, committed=True) as log:
        return values(log, topic)


def from_kafka(server: InProcessServer, topic: str, isolation: str = "read_committed") -> list[bytes]:
    options = parse({"kafka.bootstrap.servers": server.kafka, "kafka.isolation.level": isolation})
    assert options is not None
    with KafkaLog(options, own=True) as log:
        return values(log, topic)


@pytest.mark.parametrize("seed", range(3))
def test_all_readers_see_the_same_committed_records(server: InProcessServer, seed: int) -> None:
    topic = f"interleaved-{seed}"
    create(server, (topic, 1))
    api = Api(server.http)
    stream = api.done("GET", f"/streams?compartmentId={COMPARTMENT}&name={topic}")[0]["id"]
    with interleaved(server.kafka, topic, seed) as made:
        for _ in range(4):
            made.some(12)
            expected = made.committed()
            assert from_kafka(server, topic) == expected
            assert from_kafka(server, topic, "read_uncommitted") == made.everything()
            assert api.values(stream, api.cursor(stream)) == expected
            # The journal acknowledges batches before Redis has them.
            wait_for(lambda: from_redis(server, topic) == made.committed(), "the batches to be in Redis")
            server.clock.advance(seconds=1)  # snapshots
    api.close()


def test_the_list_of_aborted_transactions_spans_responses(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response has one batch, so the batches of an aborted transaction are in several of them."""
    assert fetch.batches.__kwdefaults__ is not None
    monkeypatch.setitem(fetch.batches.__kwdefaults__, "fetch_bytes", 1)
    create(server, ("spanning", 1))
    with interleaved(server.kafka, "spanning", 7) as made:
        made.some(60)
        assert len(made.committed()) < len(made.everything())
        assert from_kafka(server, "spanning") == made.committed()


@pytest.mark.spark
def test_spark_reads_the_same_rows_from_redis_and_through_kafka(server: InProcessServer, spark: "SparkSession") -> None:
    topic = "rows"
    create(server, (topic, 1))
    with interleaved(server.kafka, topic, 0) as made:
        made.transaction(3, commit=True)
        made.transaction(2, commit=False)
        made.transaction(2, commit=True)
        made.transaction(2, commit=None)
        made.transaction(1, commit=True)
        expected = made.committed()
        assert (len(expected), len(made.everything())) == (5, 10)
        wait_for(lambda: from_redis(server, topic) == expected, "the batches to be in Redis")

        def rows(place: dict[str, str], isolation: str) -> list[tuple[int, bytes]]:
            options = {"subscribe": topic, "kafka.isolation.level": isolation, **place}
            frame = spark.read.format("headrace").options(**options).load().select("offset", "value")
            return sorted((row.offset, bytes(row.value)) for row in frame.collect())

        redis, kafka = {"redis": server.storage}, {"kafka.bootstrap.servers": server.kafka}
        found = rows(redis, "read_committed")
        assert [value for _, value in found] == expected
        assert rows(kafka, "read_committed") == found
        assert rows(redis | kafka, "read_committed") == found
        everything = rows(redis, "read_uncommitted")
        assert [value for _, value in everything] == made.everything()
        assert rows(kafka, "read_uncommitted") == everything
