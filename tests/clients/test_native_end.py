"""Every client reaches the end of a native topic whose last entries were deleted."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPlace
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.harness.wire import Wire

from headrace.testing import Server
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPlace

_WAIT_S = 60
_KEPT = 3


@pytest.fixture(params=[1, 40_000_000])
def end(request: pytest.FixtureRequest, running: Server, wire: Wire, topic: str) -> Iterator[int]:
    """The end of a native topic: three entries are left of six, a millisecond or half a day apart."""
    wire.create(topic, headrace_storage="native")
    with redis.Redis.from_url(running.storage) as link:
        ids = [f"{1_000 + n * request.param}-0" for n in range(2 * _KEPT)]
        for entry in ids:
            link.xadd(f"headrace:{topic}:0", {"value": "x"}, id=entry)
        link.xdel(f"headrace:{topic}:0", *ids[_KEPT:])
        yield wire.offset(topic, -1).offset


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not reached():
        assert time.monotonic() < deadline, "the end was not reached"


def test_confluent_kafka(running: Server, topic: str, end: int) -> None:
    consumer = Consumer({
        "bootstrap.servers": running.kafka,
        "group.id": topic,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []

        def at_end() -> bool:
            found.extend(consumer.consume(10, 0.2))
            return any(each.error() and each.error().code() == KafkaError._PARTITION_EOF for each in found)

        until(at_end)
        eof = next(each for each in found if each.error())
        assert eof.offset() == end
        assert len(found) == _KEPT + 1
    finally:
        consumer.close()


@pytest.mark.apt
def test_kcat(running: Server, topic: str, end: int) -> None:
    command = ["kcat", "-b", running.kafka, "-C", "-t", topic, "-p", "0", "-e", "-f", "%o\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=True)
    assert len(done.stdout.splitlines()) == _KEPT
    assert f"at offset {end}" in done.stderr


def test_kafka_python(running: Server, topic: str, end: int) -> None:
    consumer = KafkaConsumer(bootstrap_servers=running.kafka, enable_auto_commit=False)
    try:
        place = PythonPlace(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        found = []

        def at_end() -> bool:
            found.extend(consumer.poll(timeout_ms=200).get(place, ()))
            return bool(consumer.position(place) == end)

        until(at_end)
        assert len(found) == _KEPT
    finally:
        consumer.close(autocommit=False)


def test_aiokafka(running: Server, topic: str, end: int) -> None:
    async def read() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=running.kafka, enable_auto_commit=False)
        await consumer.start()
        try:
            place = AioPlace(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            found = 0
            while await consumer.position(place) < end:
                got = await consumer.getmany(place, timeout_ms=200)
                found += len(got.get(place, ()))
            return found
        finally:
            await consumer.stop()

    assert asyncio.run(asyncio.wait_for(read(), _WAIT_S)) == _KEPT


def test_commits_of_a_kafka_python_group(running: Server, wire: Wire, topic: str, end: int) -> None:
    """What lag tools compare: the committed offset and the end."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=running.kafka, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        place = PythonPlace(topic, 0)

        def at_end() -> bool:
            consumer.poll(timeout_ms=200)
            return place in consumer.assignment() and bool(consumer.position(place) == end)

        until(at_end)
        consumer.commit()
        assert wire.committed(topic, topic) == end
    finally:
        consumer.close()
