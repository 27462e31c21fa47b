"""Sequences of idempotent producers on the wire (reference: KIP-98, KIP-360)."""

import itertools
from collections.abc import Callable

import pytest
from tests.harness.wire import Wire, batch, produce_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import ProduceRequest, ProduceResponse
from headrace.testing import server

Send = Callable[..., ProduceResponse.PartitionProduceResponse]

LAST_SEQUENCE = 2**31 - 1


@pytest.fixture
def send(wire: Wire, topic: str) -> Send:
    """Sends a batch of one producer: first sequence, number of records, epoch; the topic is there."""
    wire.create(topic)
    producer_id = wire.producer_id()

    def send(sequence: int, count: int = 1, epoch: int = 0) -> ProduceResponse.PartitionProduceResponse:
        values = [b"%d" % number for number in range(sequence, sequence + count)]
        data = batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return wire.produce(topic, data)

    return send


def test_sequences_in_order(send: Send) -> None:
    assert [send(0, 3).base_offset, send(3, 2).base_offset, send(5).base_offset] == [0, 3, 5]


def test_each_of_the_last_five_batches_again_gives_its_first_offset(wire: Wire, topic: str, send: Send) -> None:
    spans = [2, 1, 3, 1, 2]
    sequences = list(itertools.accumulate(spans, initial=0))
    first = [send(sequence, span) for sequence, span in zip(sequences, spans, strict=False)]
    again = [send(sequence, span) for sequence, span in zip(sequences, spans, strict=False)]
    assert [one.base_offset for one in again] == [one.base_offset for one in first]
    assert {one.error_code for one in again} == {0}
    assert wire.offset(topic, -1).offset == sum(spans)
    assert send(sequences[-1]).base_offset == sum(spans)


def test_a_batch_before_the_last_five_is_out_of_order(send: Send) -> None:
    for sequence in range(6):
        assert send(sequence).error_code == 0
    assert send(0).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(1).base_offset == 1


@pytest.mark.parametrize("sequence", [3, 100])
def test_a_gap_is_out_of_order(send: Send, sequence: int) -> None:
    send(0, 2)
    assert send(sequence).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(2).base_offset == 2


def test_a_batch_that_overlaps_another_is_out_of_order(send: Send) -> None:
    send(0, 4)
    assert send(0, 3).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(2, 4).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere(send: Send) -> None:
    assert send(1_000).base_offset == 0
    assert send(1_001).base_offset == 1


def test_sequences_wrap(send: Send) -> None:
    assert send(LAST_SEQUENCE - 1, 2).base_offset == 0
    assert send(0).base_offset == 2


def test_a_batch_may_lie_across_the_wrap(send: Send) -> None:
    assert send(LAST_SEQUENCE, 3).base_offset == 0
    assert send(LAST_SEQUENCE, 3).base_offset == 0
    assert send(2).base_offset == 3


def test_an_old_epoch_is_fenced(send: Send) -> None:
    send(0, epoch=0)
    assert send(0, epoch=2).base_offset == 1
    assert send(1, epoch=1).error_code == Code.INVALID_PRODUCER_EPOCH
    assert send(1, epoch=2).base_offset == 2


def test_a_new_epoch_begins_with_sequence_0(send: Send) -> None:
    send(0, 5)
    assert send(5, epoch=1).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, epoch=1).base_offset == 5


def test_partitions_count_for_themselves(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=2)
    producer_id = wire.producer_id()

    def part(index: int, sequence: int) -> ProduceRequest.PartitionProduceData:
        data = batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        return ProduceRequest.PartitionProduceData(index=index, records=data)

    def codes(*parts: ProduceRequest.PartitionProduceData) -> list[int]:
        data = [ProduceRequest.TopicProduceData(name=topic, partition_data=list(parts))]
        answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=data), 9)
        return [one.error_code for one in answer.responses[0].partition_responses]

    assert codes(part(0, 0), part(1, 0)) == [0, 0]
    assert codes(part(0, 1), part(1, 2)) == [0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER]


def test_pipelined_batches_after_a_gap_all_fail(wire: Wire, topic: str) -> None:
    """Clients that pipeline rely on it: no batch after a lost one may be appended."""
    wire.create(topic)
    producer_id = wire.producer_id()
    data = [
        batch(b"%d" % sequence, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        for sequence in (0, 2, 3, 4, 1)
    ]
    for one in data:
        wire.send(produce_request(topic, one), 9)
    codes = [wire.receive().responses[0].partition_responses[0].error_code for _ in data]
    gap = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert codes == [0, gap, gap, gap, 0]


def test_sequences_survive_a_restart(topic: str) -> None:
    """The commonest duplicate: the answer was lost because the server went away."""
    with server() as one:
        with Wire(one.kafka) as wire:
            wire.create(topic)
            producer_id = wire.producer_id()
            sent = [
                batch(b"%d" % sequence, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
                for sequence in range(4)
            ]
            assert [wire.produce(topic, data).base_offset for data in sent[:3]] == [0, 1, 2]
        one.restart()
        with Wire(one.kafka) as wire:
            assert [wire.produce(topic, data).base_offset for data in sent] == [0, 1, 2, 3]
            assert wire.offset(topic, -1).offset == 4
            assert wire.producer_id() > producer_id
