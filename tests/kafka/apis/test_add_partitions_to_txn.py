"""AddPartitionsToTxn: all partitions or none."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactions import begun

from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeTransactionsRequest


def described(wire: Wire, name: str) -> tuple[Code, str, list[tuple[str, list[int]]]]:
    [found] = wire.ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
    topics = [(each.topic, each.partitions) for each in found.topics]
    return Code(found.error_code), found.transaction_state, topics


@pytest.mark.parametrize("version", range(4))
def test_one_that_cannot_be_added_keeps_the_others_out(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic, 2)
    native = wire.create(f"{topic}-native", headrace_storage="native")
    producer = begun(wire, topic)
    assert producer.add(topic, native, "none", "__consumer_offsets", version=version) == {
        (topic, 0): Code.OPERATION_NOT_ATTEMPTED,
        (native, 0): Code.POLICY_VIOLATION,
        ("none", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
        ("__consumer_offsets", 0): Code.INVALID_TOPIC_EXCEPTION,
    }
    assert described(wire, topic) == (Code.NONE, "Empty", [])
    assert producer.add(topic, partitions=(0, 1), version=version) == {(topic, 0): Code.NONE, (topic, 1): Code.NONE}
    assert described(wire, topic) == (Code.NONE, "Ongoing", [(topic, [0, 1])])


def test_a_producer_that_is_not_the_current_one(wire: Wire, topic: str) -> None:
    wire.create(topic)
    producer = begun(wire, topic)
    producer.epoch -= 1
    for version in range(4):
        fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
        assert producer.add(topic, version=version) == {(topic, 0): fenced}
    producer.transactional_id += "-unknown"
    assert producer.add(topic) == {(topic, 0): Code.INVALID_PRODUCER_ID_MAPPING}
    assert described(wire, producer.transactional_id)[0] == Code.TRANSACTIONAL_ID_NOT_FOUND
