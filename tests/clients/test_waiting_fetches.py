"""A Fetch that waits holds up its connection, as in Kafka: clients have another one for their coordinator."""

import asyncio
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioPlace
from tests.harness.wire import Wire, batch

import kafka
from headrace.testing import Server, server

FETCH_MS = 30_000
"""How long each client's Fetch waits, much longer than a member may be silent."""
SESSION_MS = 1_500
SILENT_S = 2 * SESSION_MS / 1_000
PATIENCE_S = 20


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1, group_min_session_timeout_ms=1_000) as started:
        yield started


def members(wire: Wire, group: str) -> tuple[int, int]:
    """The generation of a group, and where it has committed."""
    return wire.generation(group), wire.committed(group, group)


def test_librdkafka(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"first"))
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": running.kafka, "group.id": topic, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300,
        "fetch.wait.max.ms": FETCH_MS, "socket.timeout.ms": 2 * FETCH_MS,
    })  # fmt: skip
    try:
        consumer.subscribe([topic])
        first = consumer.poll(PATIENCE_S)
        assert first is not None
        assert first.value() == b"first"
        generation = wire.generation(topic)
        # It stays a member, and commits, while its Fetch waits.
        assert consumer.poll(SILENT_S) is None
        consumer.commit(asynchronous=False)
        assert members(wire, topic) == (generation, 1)
        wire.produce(topic, batch(b"second"))
        second = consumer.poll(PATIENCE_S)
        assert second is not None
        assert second.value() == b"second"
    finally:
        consumer.close()


def test_kafka_python(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"first"))
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=running.kafka, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=300,
        fetch_max_wait_ms=FETCH_MS, request_timeout_ms=2 * FETCH_MS,
    )  # fmt: skip
    try:
        assert polled(consumer, PATIENCE_S) == [b"first"]
        generation = wire.generation(topic)
        assert polled(consumer, SILENT_S) == []
        consumer.commit()
        assert members(wire, topic) == (generation, 1)
        wire.produce(topic, batch(b"second"))
        assert polled(consumer, PATIENCE_S) == [b"second"]
    finally:
        consumer.close()


def polled(consumer: kafka.KafkaConsumer, seconds: float) -> list[bytes]:
    """Poll until something comes, or so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for records in consumer.poll(200).values():
            return [record.value for record in records]
    return []


def test_aiokafka(running: Server, wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"first"))
    asyncio.run(consume(running, wire, topic))


async def consume(running: Server, wire: Wire, topic: str) -> None:
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=running.kafka, group_id=topic, auto_offset_reset="earliest",
        enable_auto_commit=False, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=300,
        fetch_max_wait_ms=FETCH_MS, request_timeout_ms=2 * FETCH_MS,
    )  # fmt: skip
    async with consumer:
        first = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        assert first.value == b"first"
        generation = await asyncio.to_thread(wire.generation, topic)
        assert await consumer.getmany(timeout_ms=int(SILENT_S * 1_000)) == {}
        await consumer.commit({AioPlace(topic, 0): first.offset + 1})
        assert await asyncio.to_thread(members, wire, topic) == (generation, 1)
        await asyncio.to_thread(wire.produce, topic, batch(b"second"))
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"second"
