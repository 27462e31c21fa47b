"""Metrics of transactions: open ones, those that do not end in time, and what readers of committed records wait for."""

from collections.abc import Collection, Iterator
from http.client import HTTPConnection

import pytest
from tests.harness.exposition import Samples, read
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.transactions import TransactionalProducer

from headrace.broker.coordinator.participants import ClusterParticipants
from headrace.kafka.errors import Code
from headrace.testing import InProcessServer
from headrace.transactions.effects import EndParticipants
from headrace.transactions.model import Participant


@pytest.fixture
def running() -> Iterator[InProcessServer]:
    with InProcessServer(transaction_max_timeout_ms=60_000) as started:
        yield started


@pytest.fixture
def wire(running: InProcessServer) -> Iterator[Wire]:
    with Wire(running.kafka) as client:
        yield client


def scraped(running: InProcessServer) -> Samples:
    connection = HTTPConnection(running.http.removeprefix("http://"), timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read()
    connection.close()
    return read(page)


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"headrace_{name}", frozenset(labels.items())))


def test_an_open_transaction_is_counted_with_its_age_and_lag(running: InProcessServer, wire: Wire) -> None:
    wire.create("used", 2)
    wire.create("plain")
    wire.produce("plain", batch(b"x"))
    samples = scraped(running)
    for name in ("transactions", "transactions_overdue", "aborted_transactions"):
        assert value(samples, name) == 0
    assert value(samples, "last_stable_offset_lag", topic="used") is None
    assert value(samples, "transaction_verification_seconds_count") is None

    producer = TransactionalProducer(wire, "one", 2, timeout_ms=60_000)
    producer.initialize()
    assert producer.send("used", b"a") == producer.send("used", b"b") == Code.NONE
    assert producer.send("used", b"c", partition=1) == Code.NONE
    running.clock.advance(20)
    samples = scraped(running)
    assert value(samples, "transactions") == 1
    assert value(samples, "transactions_overdue") == 0
    assert 20 <= (value(samples, "transaction_oldest_seconds") or 0) < 40
    assert value(samples, "last_stable_offset_lag", topic="used") == 2
    assert value(samples, "last_stable_offset_lag", topic="plain") is None
    assert value(samples, "transaction_verification_seconds_count") == 2, "one per partition"

    assert producer.end(commit=False) == Code.NONE
    samples = scraped(running)
    assert value(samples, "transactions") == value(samples, "transaction_oldest_seconds") == 0
    assert value(samples, "last_stable_offset_lag", topic="used") == 0
    assert value(samples, "aborted_transactions") == 2


async def never(_: ClusterParticipants, call: EndParticipants) -> Collection[Participant]:
    return ()


def test_a_transaction_that_its_partition_does_not_end_is_overdue_and_late(
    running: InProcessServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.create("used")
    producer = TransactionalProducer(wire, "one", 2, timeout_ms=60_000)
    producer.initialize()
    assert producer.send("used", b"a") == Code.NONE
    monkeypatch.setattr(ClusterParticipants, "end", never)
    running.clock.advance(61)
    samples = scraped(running)
    assert value(samples, "transactions") == value(samples, "transactions_overdue") == 1
    assert value(samples, "late_transaction_partitions") == 0
    running.clock.advance(300)
    samples = scraped(running)
    assert value(samples, "late_transaction_partitions") == value(samples, "last_stable_offset_lag", topic="used") == 1
    monkeypatch.undo()

    def ended() -> bool:
        running.clock.advance(2)
        found = scraped(running)
        return (value(found, "transactions_overdue"), value(found, "late_transaction_partitions")) == (0, 0)

    wait_for(ended, "the coordinator to call again")
