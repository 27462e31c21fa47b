"""Compacted topics are cleaned while real clients use them: less memory, and the last record of each key."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
import redis
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.harness.clients.confluent_admin import ConfluentAdmin
from tests.harness.redis import RedisServer

from headrace.testing import InProcessServer
from kafka import KafkaConsumer, TopicPartition

TOPIC = "states"
KEYS, TIMES = 1_000, 12
PATIENCE_S = 60


@pytest.fixture
def link(own_redis: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(own_redis.url) as found:
        yield found


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def produce(bootstrap: str, numbers: range, *, value: bool = True) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in numbers:
        producer.produce(
            TOPIC, b"%d %d" % (number, time.monotonic_ns()) + b"." * 100 if value else None, b"%d" % number
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def table(bootstrap: str) -> tuple[dict[bytes, bytes | None], int, list[int]]:
    """The last values as kafka-python reads them from the beginning, the log end, and all offsets."""
    partition = TopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=PATIENCE_S * 1_000)
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    consumer.seek_to_beginning(partition)
    found, offsets = {}, []
    for record in consumer:
        found[record.key] = record.value
        offsets.append(record.offset)
        if record.offset >= end - 1:
            break
    consumer.close()
    return found, end, offsets


def offsets_of_librdkafka(bootstrap: str, end: int) -> list[int]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while (not found or found[-1] < end - 1) and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.offset() or 0)
    consumer.close()
    return found


def cleaned(server: InProcessServer, link: Any, end: int) -> None:
    """Until the cleaner has cleaned up to the last batch."""
    deadline = time.monotonic() + PATIENCE_S
    clean = None
    while time.monotonic() < deadline:
        server.clock.advance(seconds=16)
        time.sleep(0.1)
        (stream,) = link.scan_iter("headrace:states:*")
        clean = link.hget(b"{%b}:clean" % stream, "end")
        if clean is not None and link.xlen(stream) == 1 and int(clean) < end:
            return
    raise AssertionError(f"cleaned up to {clean} of {end}")


def test_a_table_of_states_stays_small(own_redis: RedisServer, link: Any) -> None:
    with InProcessServer(redis=own_redis.url, headrace_cache_bytes=0) as server:
        with ConfluentAdmin(server.kafka) as admin:
            admin.create(TOPIC, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.9"})
        for _ in range(TIMES):
            produce(server.kafka, range(KEYS))
        before, end, offsets = table(server.kafka)
        assert offsets == list(range(KEYS * TIMES))
        used = link.info("memory")["used_memory"]
        cleaned(server, link, end)
        assert link.info("memory")["used_memory"] < used - (KEYS * (TIMES - 3) * 100)
        after, end_after, offsets = table(server.kafka)
        assert (after, end_after) == (before, end)
        assert len(offsets) < 3 * KEYS
        # Deleted keys go after delete.retention.ms, which is changed while the topic is in use.
        produce(server.kafka, range(0, KEYS, 2), value=False)
        produce(server.kafka, range(KEYS, KEYS + 1))
        cluster = AdminClient({"bootstrap.servers": server.kafka})
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in (("delete.retention.ms", "60000"), ("min.cleanable.dirty.ratio", "0.01"))
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=changes)
        for each in cluster.incremental_alter_configs([resource]).values():
            each.result(PATIENCE_S)
        states, end, _ = table(server.kafka)
        cleaned(server, link, end)
        deadline = time.monotonic() + PATIENCE_S
        while None in table(server.kafka)[0].values() and time.monotonic() < deadline:
            server.clock.advance(seconds=70)
            time.sleep(0.2)
        left, end_after, offsets = table(server.kafka)
        assert left == {key: value for key, value in states.items() if value is not None}
        assert end_after == end
    with InProcessServer(redis=own_redis.url, headrace_cache_bytes=0) as server:
        assert table(server.kafka) == (left, end, offsets)
        assert offsets_of_librdkafka(server.kafka, end) == offsets
        with ConfluentAdmin(server.kafka) as admin:
            admin.delete(TOPIC)
        deadline = time.monotonic() + PATIENCE_S
        while list(link.scan_iter("*states*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [key for key in link.scan_iter("*states*") if b":clean" in key] == []
