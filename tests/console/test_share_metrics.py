"""Metrics of share groups: records held, repeated deliveries, ended locks and delivery limits."""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from tests.harness.exposition import Samples, read
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import RELEASE, Sharer, configure

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
    return samples.get((f"headrace_share_{name}", frozenset(labels.items())))


def test_a_record_is_counted_until_its_delivery_limit(running: InProcessServer) -> None:
    with Wire(running.kafka) as wire:
        wire.create("tasks")
        configure(wire, "workers", share_auto_offset_reset="earliest", share_delivery_count_limit=2)
        wire.produce("tasks", batch(b"a", b"b", b"c"))
        assert value(scraped(running), "sessions") == 0
        sharer = Sharer(wire, "workers", "tasks")
        sharer.beat()
        sharer.fetch(0)
        samples = scraped(running)
        assert value(samples, "sessions") == 1
        assert value(samples, "held_records", group="workers", topic="tasks") == 3
        assert value(samples, "acquired_records_total") == 3
        assert value(samples, "redelivered_records_total") == 0
        sharer.acknowledge({0: [(0, 0, [RELEASE])]})
        sharer.fetch()
        samples = scraped(running)
        assert value(samples, "redelivered_records_total") == 1
        sharer.acknowledge({0: [(0, 0, [RELEASE])]})
        samples = scraped(running)
        assert value(samples, "delivery_limits_total") == 1
        assert value(samples, "lock_timeouts_total") == 0
        running.clock.advance(31)
        wait_for(lambda: value(scraped(running), "lock_timeouts_total") == 2, "the end of two locks")
        assert value(scraped(running), "held_records", group="workers", topic="tasks") == 0
