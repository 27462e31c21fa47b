"""InitProducerId: producer ids and epochs (reference: KIP-98, KIP-360)."""

import pytest
from tests.harness.wire import Wire, batch

from headrace.protocol.messages import InitProducerIdRequest


def test_producer_ids_are_new_each_time(wire: Wire) -> None:
    given = [wire.producer_id() for _ in range(50)]
    assert len(set(given)) == 50
    assert min(given) >= 0


@pytest.mark.parametrize("version", range(5))
def test_versions_of_init_producer_id(wire: Wire, version: int) -> None:
    answer = wire.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0)


@pytest.mark.parametrize("version", range(5))
def test_a_transactional_id_fails_instead_of_pretending(wire: Wire, version: int) -> None:
    answer = wire.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), version)
    assert answer.error_code != 0
    assert answer.producer_id == -1


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
