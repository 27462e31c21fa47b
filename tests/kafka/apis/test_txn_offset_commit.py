"""AddOffsetsToTxn and TxnOffsetCommit: offsets of a group that a transaction commits or drops."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactions import begun

from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetFetchRequest

VERSIONS = pytest.mark.parametrize("version", [1, 2])


def committed(wire: Wire, group: str, topic: str) -> tuple[int, Code]:
    """Read a committed offset with `require_stable`."""
    asked = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    answer = wire.ask(OffsetFetchRequest(group_id=group, topics=[asked], require_stable=True), 7)
    [found] = answer.topics[0].partitions
    return found.committed_offset, Code(found.error_code)


@VERSIONS
def test_offsets_are_committed_with_the_transaction(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, version)
    for offset, commit, expected in ((3, True, 3), (5, False, 3), (7, True, 7)):
        if version == 1:
            assert producer.add_offsets(topic) == Code.NONE
        assert producer.commit(topic, topic, offset) == Code.NONE
        assert committed(wire, topic, topic) == (-1, Code.UNSTABLE_OFFSET_COMMIT)
        assert producer.end(commit=commit) == Code.NONE
        # Trap 14: an OffsetFetch right after EndTxn.
        assert committed(wire, topic, topic) == (expected, Code.NONE)


@pytest.mark.parametrize("version", range(5))
def test_a_group_must_be_in_the_transaction(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    producer = begun(wire, topic, 1)
    missing = Code.TRANSACTION_ABORTABLE if version >= 4 else Code.INVALID_TXN_STATE
    assert producer.add_offsets(f"{topic}-other", version=version) == Code.NONE
    assert producer.commit(topic, topic, 1, version=version) == missing
    assert producer.add_offsets(topic, version=version) == Code.NONE
    assert producer.commit(topic, topic, 1, version=version) == Code.NONE
    assert producer.commit(topic, f"{topic}-none", 1, version=version) == Code.UNKNOWN_TOPIC_OR_PARTITION
    producer.epoch -= 1
    assert producer.commit(topic, topic, 1, version=version) == Code.INVALID_PRODUCER_EPOCH
    fenced = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
    assert producer.add_offsets(topic, version=version) == fenced
    producer.epoch += 1
    assert producer.end(commit=True) == Code.NONE
    assert committed(wire, topic, topic) == (1, Code.NONE)


def test_a_member_of_another_generation_is_rejected(wire: Wire, topic: str) -> None:
    wire.create(topic)
    producer = begun(wire, topic, 1)
    assert producer.add_offsets(topic) == Code.NONE
    assert producer.commit(topic, topic, 1, generation_id=1, member_id="gone") == Code.ILLEGAL_GENERATION
    assert producer.end(commit=True) == Code.NONE
    assert committed(wire, topic, topic) == (-1, Code.NONE)


def test_a_group_needs_a_name(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for version in (1, 2):
        producer = begun(wire, topic, version)
        assert producer.add_offsets("") == Code.INVALID_GROUP_ID
        assert producer.commit("", topic, 1) == Code.INVALID_GROUP_ID
