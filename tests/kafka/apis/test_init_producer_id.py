"""InitProducerId: producer ids and epochs (reference: KIP-98, KIP-360)."""

from typing import Any

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.transactions import TransactionalProducer

from headrace.kafka.errors import Code
from headrace.protocol.messages import InitProducerIdRequest


def test_producer_ids_are_new_each_time(wire: Wire) -> None:
    given = [wire.producer_id() for _ in range(50)]
    assert len(set(given)) == 50
    assert min(given) >= 0


@pytest.mark.parametrize("version", range(5))
def test_versions_of_init_producer_id(wire: Wire, version: int) -> None:
    answer = wire.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id_keeps_its_producer_id(wire: Wire, topic: str, version: int) -> None:
    first, second = TransactionalProducer(wire, topic), TransactionalProducer(wire, topic)
    assert first.initialize(version) == Code.NONE
    assert second.initialize(version) == Code.NONE
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    if version >= 3:
        fenced = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
        assert first.initialize(version, again=True) == fenced
        first.epoch = second.epoch
        assert second.initialize(version, again=True) == Code.NONE
        assert first.initialize(version, again=True) == Code.NONE, "a repeat of the last request"
        assert (second.epoch, first.epoch) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"transactional_id": ""}, Code.INVALID_REQUEST),
        ({"transactional_id": "x" * 1_025}, Code.INVALID_REQUEST),
        ({"transaction_timeout_ms": 0}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 900_001}, Code.INVALID_TRANSACTION_TIMEOUT),
        ({"producer_id": 7}, Code.INVALID_REQUEST),
        ({"producer_epoch": 7}, Code.INVALID_REQUEST),
    ],
)
def test_rejected_requests(wire: Wire, changes: dict[str, Any], code: Code) -> None:
    given: dict[str, Any] = {"transactional_id": "rejected", "transaction_timeout_ms": 60_000}
    answer = wire.ask(InitProducerIdRequest(**given | changes), 4)
    assert (answer.error_code, answer.producer_id) == (code, -1)


@pytest.mark.parametrize("version", [3, 4])
def test_raising_the_epoch_gives_a_fresh_start(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    old = wire.producer_id()
    wire.produce(topic, batch(b"x", producer_id=old, producer_epoch=0, base_sequence=0))
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, producer_id=old, producer_epoch=0
    )
    answer = wire.ask(request, version)
    assert answer.error_code == 0
    assert (answer.producer_id, answer.producer_epoch) != (old, 0)
    again = batch(b"y", producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, base_sequence=0)
    assert wire.produce(topic, again).base_offset == 1
