"""What a new producer's client makes of a first batch that is refused for a moment while the leader changes."""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
import redis
from tests.harness.wire import Wire

from headrace.broker.native.partition import NativePartition
from headrace.testing import InProcessServer


@pytest.fixture
def running() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first batch of all is refused; clients are sent elsewhere and back before anything else is read."""
    refused: list[int] = []
    append = NativePartition.append

    def refuse_once(partition: NativePartition, *arguments: Any) -> None:
        if refused:
            append(partition, *arguments)
            return
        refused.append(arguments[0].base_sequence)
        partition.paused = True
        try:
            append(partition, *arguments)
        finally:
            partition.paused = False
            for leader in (2, None):
                partition.leader = leader

    monkeypatch.setattr(NativePartition, "append", refuse_once)
    return refused


def test_records_that_librdkafka_reports_as_stored_are_stored_after_a_refused_first_batch(
    running: InProcessServer, refusing: list[int]
) -> None:
    """It takes an answer to a batch for one to all that it sent before."""
    with Wire(running.kafka) as wire:
        wire.create("t", headrace_storage="native")
        told: list[tuple[bytes | None, object]] = []
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": running.kafka, "enable.idempotence": True, "batch.num.messages": 1, "linger.ms": 0}
        )
        for number in range(10):
            producer.produce("t", str(number), on_delivery=lambda error, sent: told.append((sent.value(), error)))
        assert producer.flush(60) == 0
        assert refusing == [0]
        values = [str(number).encode() for number in range(10)]
        assert told == [(value, None) for value in values]
    with redis.Redis.from_url(running.storage) as link:
        found: Any = link.xrange("headrace:t:0")
    assert [fields[b"value"] for _, fields in found] == values
