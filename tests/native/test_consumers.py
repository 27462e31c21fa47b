"""Members of a consumer group (KIP-848) read a native topic as consumers of its Redis group."""

import time
from collections.abc import Callable
from itertools import count

import pytest
from confluent_kafka import Consumer
from tests.harness.wire import Wire

from headrace.testing import Server

from .conftest import Link

PARTITIONS, ENTRIES = 2, 40


def until(condition: Callable[[], bool], polled: list[Consumer], got: list[tuple[int, int]]) -> None:
    """Poll until it is so."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        for consumer in polled:
            record = consumer.poll(0.05)
            if record is not None and record.error() is None:
                got.append((int(record.partition() or 0), int(record.offset() or 0)))


@pytest.fixture
def topic(request: pytest.FixtureRequest, wire: Wire) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return wire.create(name, partitions=PARTITIONS, headrace_storage="native")


def test_partitions_move_without_repeated_or_lost_entries(running: Server, topic: str, link: Link) -> None:
    numbers = count()

    def member() -> Consumer:
        config = {
            "bootstrap.servers": running.kafka,
            "group.id": topic,
            "group.protocol": "consumer",
            "client.id": f"client-{next(numbers)}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(config)
        consumer.subscribe([topic])
        return consumer

    def add() -> None:
        for number in range(ENTRIES):
            link.xadd(f"headrace:{topic}:{number % PARTITIONS}", {"value": str(number)})

    got: list[tuple[int, int]] = []
    add()
    first = member()
    until(lambda: len(got) >= ENTRIES, [first], got)
    groups = [link.xinfo_groups(f"headrace:{topic}:{index}")[0] for index in range(PARTITIONS)]
    assert [(group["name"], group["pending"], group["consumers"]) for group in groups] == [(topic, 20, 1)] * PARTITIONS
    first.commit(asynchronous=False)
    assert [link.xpending(f"headrace:{topic}:{index}", topic)["pending"] for index in range(PARTITIONS)] == [0, 0]

    second = member()
    until(lambda: len(first.assignment()) == len(second.assignment()) == 1, [first, second], got)
    add()
    until(lambda: len(got) >= 2 * ENTRIES, [first, second], got)
    assert len(set(got)) == len(got) == 2 * ENTRIES
    names = [
        {consumer["name"] for consumer in link.xinfo_consumers(f"headrace:{topic}:{index}", topic)}
        for index in range(PARTITIONS)
    ]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]
    for each in (first, second):
        each.commit(asynchronous=False)
    first.close()
    until(lambda: len(second.assignment()) == PARTITIONS, [second], got)
    add()
    until(lambda: len(got) >= 3 * ENTRIES, [second], got)
    assert len(set(got)) == len(got)
    second.close()
