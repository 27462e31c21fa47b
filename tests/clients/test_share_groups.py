"""librdkafka's share consumer (KIP-932): members share the records of a partition."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from tests.harness.wire import Wire
from tests.kafka.sharer import configure

from headrace.testing import Server, server

LOCK_MS = 1_000
Place = tuple[int, int]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1, group_share_min_record_lock_duration_ms=LOCK_MS) as started:
        yield started


@pytest.fixture
def shared(wire: Wire, topic: str) -> str:
    """A topic that the group of the same name reads from its start."""
    configure(wire, topic, share_auto_offset_reset="earliest")
    return wire.create(topic, 1)


def consumer(running: Server, group: str, *, explicit: bool = False) -> Any:
    mode = "explicit" if explicit else "implicit"
    made = ShareConsumer({"bootstrap.servers": running.kafka, "group.id": group, "share.acknowledgement.mode": mode})
    made.subscribe([group])
    return made


def fill(running: Server, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": running.kafka})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0


def polled(member: Any, seconds: float = 10) -> list[Any]:
    """The next records, or none after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = [each for each in member.poll(0.2) or () if each.error() is None]
        if found:
            return found
    return []


def test_records_come_soon_after_the_first_subscription(running: Server, shared: str) -> None:
    fill(running, shared, 100)
    began = time.monotonic()
    member = consumer(running, shared)
    assert polled(member)
    assert time.monotonic() - began < 3, "Kafka takes more than 6 s"
    member.close()


def test_eight_members_of_one_partition_get_each_record_once(running: Server, shared: str) -> None:
    fill(running, shared, 4_000)
    got: list[list[int]] = [[] for _ in range(8)]
    over = threading.Event()

    def work(number: int) -> None:
        member = consumer(running, shared)
        while not over.is_set():
            got[number] += [each.offset() for each in member.poll(0.1) or () if each.error() is None]
        member.close()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in workers:
        each.start()
    deadline = time.monotonic() + 60
    while sum(map(len, got)) < 4_000 and time.monotonic() < deadline:
        time.sleep(0.05)
    over.set()
    for each in workers:
        each.join()
    assert Counter(offset for one in got for offset in one) == dict.fromkeys(range(4_000), 1)


def test_a_record_that_is_released_again_and_again_is_archived(running: Server, shared: str) -> None:
    fill(running, shared, 1)
    member = consumer(running, shared, explicit=True)
    counts = []
    while found := polled(member, 3):
        (record,) = found
        counts.append(record.delivery_count())
        member.acknowledge(record, AcknowledgeType.RELEASE)
        member.commit_sync(10)
    assert counts == [1, 2, 3, 4, 5]
    member.close()


def test_rejected_records_do_not_return(running: Server, shared: str) -> None:
    fill(running, shared, 10)
    member = consumer(running, shared, explicit=True)
    seen: Counter[int] = Counter()
    while found := polled(member, 3):
        for record in found:
            seen[record.offset()] += 1
            kind = AcknowledgeType.REJECT if record.offset() % 2 else AcknowledgeType.ACCEPT
            member.acknowledge(record, kind)
        member.commit_sync(10)
    assert seen == dict.fromkeys(range(10), 1)
    member.close()


@pytest.mark.parametrize("closes", [True, False])
def test_a_member_that_ends_or_dies_gives_its_records_back_at_once(running: Server, shared: str, closes: bool) -> None:
    """Its locks would last for 30 s."""
    fill(running, shared, 5)
    first, second = consumer(running, shared, explicit=True), consumer(running, shared, explicit=True)
    assert len(polled(first)) == 5
    began = time.monotonic()
    if closes:
        first.close()
    else:
        del first
    again = polled(second)
    assert [record.delivery_count() for record in again] == [2] * 5
    assert time.monotonic() - began < 10
    for record in again:
        second.acknowledge(record)
    second.commit_sync(10)
    second.close()


def test_a_late_acknowledgement_is_refused(running: Server, wire: Wire, shared: str) -> None:
    configure(wire, shared, share_record_lock_duration_ms=LOCK_MS)
    fill(running, shared, 3)
    first, second = consumer(running, shared, explicit=True), consumer(running, shared, explicit=True)
    late = polled(first)
    again = polled(second)
    assert [record.delivery_count() for record in again] == [2] * 3
    for record in late:
        first.acknowledge(record)
    (outcome,) = first.commit_sync(10).values()
    assert "INVALID_RECORD_STATE" in repr(outcome) or "state" in str(outcome)
    for member in (first, second):
        member.close()
