"""OffsetDelete: committed offsets of a group are deleted (KIP-496)."""

from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
)


def test_positions_are_deleted(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=2)
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
        for index in range(2)
    ]
    asked = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
    wire.ask(OffsetCommitRequest(group_id=topic, topics=[asked]), 8)

    def delete(group: str, *indexes: int) -> tuple[int, list[int]]:
        places = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        named = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=places)
        answer = wire.ask(OffsetDeleteRequest(group_id=group, topics=[named]), 0)
        return answer.error_code, [one.error_code for each in answer.topics for one in each.partitions]

    assert delete(topic, 1, 7) == (0, [0, Code.UNKNOWN_TOPIC_OR_PARTITION])
    assert (wire.committed(topic, topic, 0), wire.committed(topic, topic, 1)) == (5, -1)
    assert delete("nobody", 0) == (Code.GROUP_ID_NOT_FOUND, [])
