"""AddOffsetsToTxn: a group in a transaction."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactions import TransactionalProducer

from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeTransactionsRequest


@pytest.mark.parametrize("version", range(5))
def test_a_group_begins_a_transaction(wire: Wire, topic: str, version: int) -> None:
    producer = TransactionalProducer(wire, topic)
    assert producer.initialize() == Code.NONE
    assert producer.add_offsets("", version) == Code.INVALID_GROUP_ID
    assert producer.add_offsets(topic, version) == Code.NONE
    [found] = wire.ask(DescribeTransactionsRequest(transactional_ids=[topic]), 0).transaction_states
    assert (found.transaction_state, found.topics) == ("Ongoing", [])
    assert producer.end(commit=True) == Code.NONE


def test_an_unknown_transactional_id(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic)
    producer.producer_id, producer.epoch = 1, 0
    assert producer.add_offsets(topic) == Code.INVALID_PRODUCER_ID_MAPPING


def test_an_epoch_of_another_producer(wire: Wire, topic: str) -> None:
    producer = TransactionalProducer(wire, topic)
    assert producer.initialize() == Code.NONE
    producer.epoch += 1
    for version in range(5):
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert producer.add_offsets(topic, version) == fenced
