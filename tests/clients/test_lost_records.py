"""Errors of clients for lost records: by a Redis that had acknowledged them, or by a trim."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.harness.failover import Failover
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import DeleteRecordsRequest, FetchRequest, OffsetForLeaderEpochRequest
from headrace.testing import Server, server

TOPIC = "t"
PATIENCE_S = 60


@pytest.fixture
def storage() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def started(storage: RedisServer) -> Iterator[Server]:
    with server(redis=storage.url) as running:
        yield running


def produce(started: Server, *numbers: int) -> None:
    producer = Producer({"bootstrap.servers": started.kafka, "enable.idempotence": True})
    for number in numbers:
        producer.produce(TOPIC, b"%d" % number)
        # One batch each.
        assert producer.flush(PATIENCE_S) == 0


def end_of_epoch(client: Wire, epoch: int) -> tuple[int, int]:
    """What OffsetForLeaderEpoch says of the only partition: the epoch and its end."""
    place = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=TOPIC, partitions=[place])
    found = client.ask(OffsetForLeaderEpochRequest(topics=[topic]), 3).topics[0].partitions[0]
    assert found.error_code == 0
    return found.leader_epoch, found.end_offset


def leader_epoch(client: Wire) -> int:
    found: int = client.metadata(TOPIC).topics[0].partitions[0].leader_epoch
    return found


def until(done: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, what


def test_the_leader_epoch_rises_and_the_end_of_the_old_one_is_returned(started: Server, storage: RedisServer) -> None:
    produce(started, *range(4))
    failover = Failover(storage)
    produce(started, *range(4, 7))
    with Wire(started.kafka) as client:
        before = leader_epoch(client)
        failover.happen()
        until(lambda: leader_epoch(client) > before, "the leader epoch did not rise")
        produce(started, 40, 50)
        now = leader_epoch(client)
        assert end_of_epoch(client, before) == (before, 4)
        assert end_of_epoch(client, now) == (now, 6)
        # A request with the old leader epoch gets an error.
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=TOPIC, partitions=[FetchRequest.FetchPartition(
                partition=0, fetch_offset=7, partition_max_bytes=1 << 20, current_leader_epoch=before)])],
        )  # fmt: skip
        answer = client.ask(request, 12).responses[0].partitions[0]
        assert answer.error_code == Code.FENCED_LEADER_EPOCH
    log = started.logged("came back without records")
    (line,) = [line for line in log.splitlines() if "came back without records" in line]
    assert '"lost": 3' in line


def test_a_consumer_that_was_ahead_skips_nothing(started: Server, storage: RedisServer) -> None:
    """Its offset is 7; the log ends at 4, and at 12 before it asks again: only the leader epoch shows it."""
    produce(started, *range(4))
    failover = Failover(storage)
    produce(started, *range(4, 7))
    consumer = Consumer(
        {
            "bootstrap.servers": started.kafka,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
        }
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        read: list[int] = []

        def has(*numbers: int) -> bool:
            for message in consumer.consume(100, timeout=0.1):
                if message.error() is None:
                    value = message.value()
                    assert isinstance(value, bytes)
                    read.append(int(value))
            return set(numbers) <= set(read)

        until(lambda: has(*range(7)), "the records before")
        new = range(100, 108)
        failover.happen()
        produce(started, *new)
        until(lambda: has(*new), f"records were skipped: {read}")
        # In order, and from where it was set back to each of them once.
        assert read[7:] in ([*new], [*range(4), *new])


def test_a_start_on_what_has_less_raises_it_too(tmp_path: Path, storage: RedisServer) -> None:
    with server(redis=storage.url, data=tmp_path / "data") as first:
        produce(first, *range(4))
        failover = Failover(storage)
        produce(first, *range(4, 7))
        with Wire(first.kafka) as client:
            before = leader_epoch(client)
        first.stop()
        failover.happen()
        first.start()
        with Wire(first.kafka) as client:
            assert leader_epoch(client) > before
            assert end_of_epoch(client, before) == (before, 4)


def test_a_consumer_of_trimmed_records_continues_after_them(started: Server, storage: RedisServer) -> None:
    """With UNKNOWN_LEADER_EPOCH it applied auto.offset.reset: by default to the end, past records."""
    produce(started, *range(4))
    with Wire(started.kafka) as client:
        before = leader_epoch(client)
    started.stop()
    started.start()
    produce(started, *range(4, 7))
    with Wire(started.kafka) as client:
        asked = DeleteRecordsRequest.DeleteRecordsTopic(
            name=TOPIC, partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=4)]
        )
        client.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=PATIENCE_S * 1000), 2)
        assert end_of_epoch(client, before) == (before, 4)
    started.stop()
    started.start()
    with Wire(started.kafka) as client:
        assert end_of_epoch(client, before) == (before, 4), "whoever opens the log next finds no row of it"
