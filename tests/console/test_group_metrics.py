"""Metrics of groups by type and state, and of the records of share groups."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.console.visiting import ask
from tests.harness.exposition import Samples, read
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, RELEASE, Sharer, configure

from headrace.protocol.messages import ConsumerGroupHeartbeatRequest
from headrace.testing import InProcessServer


@pytest.fixture
def running() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


def scraped(running: InProcessServer) -> Samples:
    connection = HTTPConnection(running.http.removeprefix("http://"), timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read()
    connection.close()
    return read(page)


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"headrace_{name}", frozenset(labels.items())))


def test_groups_are_counted_by_type_and_state(running: InProcessServer) -> None:
    with Wire(running.kafka) as wire:
        wire.create("read")
    assert not [name for name, _ in scraped(running) if name == "headrace_groups"]
    settings = {"bootstrap.servers": running.kafka, "enable.auto.commit": False}
    for group in ("idle", "idle-2"):
        outside = Consumer(settings | {"group.id": group})
        outside.commit(offsets=[TopicPartition("read", 0, 0)], asynchronous=False)
        outside.close()
    consumer = Consumer(settings | {"group.id": "busy"})
    consumer.subscribe(["read"])
    try:
        wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "an assignment")
        samples = scraped(running)
    finally:
        consumer.close()
    assert value(samples, "groups", type="classic", state="Empty") == 2
    assert value(samples, "groups", type="classic", state="Stable") == 1
    assert value(samples, "group_members", group="busy") == 1


def test_assignments_by_the_server_are_timed(running: InProcessServer) -> None:
    with Wire(running.kafka) as wire:
        wire.create("assigned", 4)
        assert value(scraped(running), "group_assignment_duration_seconds_count") is None
        for epoch in range(3):
            request = ConsumerGroupHeartbeatRequest(
                group_id="served",
                member_id="one",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["assigned"] if epoch < 2 else ["assigned", "more"],
                topic_partitions=[],
            )
            assert wire.ask(request, 1).error_code == 0
    samples = scraped(running)
    # The second one repeats the first.
    assert value(samples, "group_assignment_duration_seconds_count") == 2
    assert value(samples, "groups", type="consumer", state="Stable") == 1
    assert value(samples, "group_members", group="served") == 1


def test_a_record_is_counted_until_its_delivery_limit(running: InProcessServer) -> None:
    with Wire(running.kafka) as wire:
        wire.create("tasks")
        configure(wire, "workers", share_auto_offset_reset="earliest", share_delivery_count_limit=2)
        wire.produce("tasks", batch(b"a", b"b", b"c"))
        assert value(scraped(running), "share_sessions") == 0
        sharer = Sharer(wire, "workers", "tasks")
        sharer.beat()
        sharer.fetch(0)
        samples = scraped(running)
        assert value(samples, "share_sessions") == 1
        assert value(samples, "share_held_records", group="workers", topic="tasks") == 3
        assert value(samples, "share_acquired_records_total") == 3
        assert value(samples, "share_redelivered_records_total") == 0
        sharer.acknowledge({0: [(0, 0, [RELEASE])]})
        sharer.fetch()
        samples = scraped(running)
        assert value(samples, "share_redelivered_records_total") == 1
        sharer.acknowledge({0: [(0, 0, [RELEASE])]})
        samples = scraped(running)
        assert value(samples, "share_delivery_limits_total") == 1
        assert value(samples, "share_lock_timeouts_total") == 0
        running.clock.advance(31)
        wait_for(lambda: value(scraped(running), "share_lock_timeouts_total") == 2, "the end of two locks")
        assert value(scraped(running), "share_held_records", group="workers", topic="tasks") == 0


@pytest.mark.parametrize("kind", ["log", "native"])
def test_share_groups_have_a_lag_also_without_members(running: InProcessServer, kind: str) -> None:
    place = {"group": "doers", "topic": "to-do", "partition": "0"}

    def lag() -> tuple[float | None, bool]:
        running.clock.advance(3)
        samples = scraped(running)
        behind = value(samples, "group_lag_seconds", **place)
        return value(samples, "group_lag", **place), behind is not None and behind >= 100

    with Wire(running.kafka) as wire:
        wire.create("to-do", headrace_storage=kind)
        configure(wire, "doers", share_auto_offset_reset="earliest")
        for _ in range(3):
            wire.produce("to-do", batch(b"a", timestamp=running.clock.now_ms()))
        running.clock.advance(100)
        sharer = Sharer(wire, "doers", "to-do")
        sharer.beat()
        [acquired] = sharer.fetch(0).responses[0].partitions
        assert lag() == (3, True)
        sharer.acknowledge({0: [(acquired.acquired_records[0].first_offset,) * 2 + ([ACCEPT],)]})
        assert lag() == (2, True)
        text = ask(running, "/topics/to-do").text
        assert "doers stable" in text
        assert f"doers share stable 1 {'2' if kind == 'log' else '-'} 1 to-do" in ask(running, "/groups").text
    wait_for(lambda: value(scraped(running), "share_sessions") == 0, "the end of the session")
    assert lag() == (2, True)
