"""DescribeTransactions: state, producer and partitions of transactional ids."""

from tests.harness.wire import Wire
from tests.kafka.transactions import TransactionalProducer

from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

State = DescribeTransactionsResponse.TransactionState


def described(wire: Wire, *names: str) -> list[State]:
    found: list[State] = wire.ask(DescribeTransactionsRequest(transactional_ids=list(names)), 0).transaction_states
    return found


def test_a_transaction_from_its_beginning_to_its_end(wire: Wire, topic: str) -> None:
    other = wire.create(f"{topic}-other")
    wire.create(topic, 3)
    producer = TransactionalProducer(wire, topic, timeout_ms=45_000)
    assert producer.initialize() == Code.NONE
    [found] = described(wire, topic)
    assert (found.transaction_state, found.transaction_start_time_ms, found.topics) == ("Empty", -1, [])
    producer.add(topic, partitions=(0, 2))
    producer.add(other)
    [found] = described(wire, topic)
    assert {each.topic: each.partitions for each in found.topics} == {topic: [0, 2], other: [0]}
    assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 45_000)
    assert found.transaction_start_time_ms > 0
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    wire.delete(other)
    [found] = described(wire, topic)
    assert [each.topic for each in found.topics] == [topic]
    assert producer.end(commit=True) == Code.NONE
    [found] = described(wire, topic)
    assert (found.transaction_state, found.transaction_start_time_ms, found.topics) == ("CompleteCommit", -1, [])


def test_unknown_and_repeated_ids(wire: Wire, topic: str) -> None:
    assert TransactionalProducer(wire, topic).initialize() == Code.NONE
    found = described(wire, f"{topic}-unknown", topic, topic)
    codes = [(each.transactional_id, each.error_code) for each in found]
    assert codes == [(f"{topic}-unknown", Code.TRANSACTIONAL_ID_NOT_FOUND), (topic, Code.NONE)]
