"""Reading through the Kafka protocol: `format("headrace")` with `kafka.bootstrap.servers` alone."""

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.wire import Wire
from tests.spark.conftest import DAY, run_out

from headrace.client import options as client_options
from headrace.client.errors import DataLoss, OptionError, ServerUnavailable, UnknownTopic
from headrace.client.offsets import Extent, Range, TopicPartition
from headrace.protocol.messages import DescribeConfigsRequest
from headrace.spark.source import options
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.tasks import with_storage
from headrace.spark.source.topic_log import Subscription
from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def log(broker: Server) -> KafkaLog:
    parsed = client_options.parse({"kafka.bootstrap.servers": f"127.0.0.1:1,{broker.kafka}"})
    assert parsed is not None
    return KafkaLog(parsed)


def fill(broker: Server, name: str, *counts: int, compression: str = "none") -> None:
    """A topic whose partition p has counts[p] records, 1 ms apart."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, len(counts))])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 60_000, "compression.type": compression})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(name, str(number), f"k{number}", partition, timestamp=DAY + number)
    assert producer.flush(60) == 0


def offsets(log: KafkaLog, name: str, start: int, end: int, **more: Any) -> list[int]:
    found = log.records("", Range(TopicPartition(name, 0), start, end), **more)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def test_the_log_says_what_it_has(broker: Server, log: KafkaLog) -> None:
    fill(broker, "wire-a", 5_000, 10, compression="zstd")
    fill(broker, "wire-b", 3)
    topics = log.topics(Subscription(pattern="wire-[ab]"))
    assert {name: topic.partitions for name, topic in topics.items()} == {"wire-a": (0, 1), "wire-b": (0,)}
    a0, a1, b0 = TopicPartition("wire-a", 0), TopicPartition("wire-a", 1), TopicPartition("wire-b", 0)
    assert log.extents(topics) == {a0: Extent(0, 5_000), a1: Extent(0, 10), b0: Extent(0, 3)}
    assert log.offsets_at(topics, {a0: DAY + 4_000, a1: DAY + 10, b0: 0}) == {a0: 4_000, a1: None, b0: 0}
    assert 2 < log.sizes(topics, {a0: 0})[a0] < 40
    assert offsets(log, "wire-a", 17, 4_321) == list(range(17, 4_321))
    with pytest.raises(DataLoss, match="offsets 5000 to 5009 of wire-a-0 are gone"):
        offsets(log, "wire-a", 5_000, 5_010)
    with pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        log.topics(Subscription(names=("wire-a", "nowhere")))


def test_the_server_returns_its_storage_url_to_authorized_clients(broker: Server) -> None:
    parsed = options.parse(
        {"redis": "ask", "kafka.bootstrap.servers": broker.kafka, "subscribe": "t"}, default_redis=None
    )
    assert with_storage(parsed).redis == broker.storage
    with Wire(broker.kafka) as wire:
        asked = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="", configuration_keys=None
        )
        [told] = wire.ask(DescribeConfigsRequest(resources=[asked]), 4).results
        [entry] = [one for one in told.configs if one.name == "headrace.storage.url"]
        assert (entry.value, entry.read_only) == (broker.storage, True)
    with pytest.raises(OptionError, match="redis=ask needs"):
        options.parse({"redis": "ask", "subscribe": "t"}, default_redis=None)


def test_an_absent_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    parsed = client_options.parse({"kafka.bootstrap.servers": "127.0.0.1:1"})
    assert parsed is not None
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1 does not answer: Connection refused"):
        KafkaLog(parsed).topics(Subscription(names=("t",)))


@pytest.mark.spark
def test_a_stream_without_redis(
    broker: Server, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> None:
    fill(broker, "wire-stream", 300, 40, compression="lz4")
    fill(broker, "wire-other", 20)
    checkpoint = str(tmp_path_factory.mktemp("checkpoint"))
    seen: set[tuple[str, int, int]] = set()

    def read() -> int:
        frame = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", broker.kafka)
            .option("subscribePattern", "wire-(stream|other|late)")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 100)
            .load()
        )
        before = len(seen)

        def keep(batch: Any, _batch_id: int) -> None:
            rows = [tuple(row) for row in batch.select("topic", "partition", "offset").collect()]
            assert not seen.intersection(rows)
            seen.update(rows)

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        run_out(writer)
        return len(seen) - before

    assert read() == 360
    fill(broker, "wire-late", 7)
    assert read() == 7
    assert read() == 0
