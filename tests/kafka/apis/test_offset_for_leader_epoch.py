"""OffsetForLeaderEpoch: where a leader epoch ends (KIP-320)."""

from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    OffsetForLeaderEpochRequest,
)


def test_the_end_of_a_leader_epoch(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"a", b"b"))
    epoch = wire.metadata(topic).topics[0].partitions[0].leader_epoch

    def ask(name: str, wanted: int, current: int = -1) -> tuple[int, int, int]:
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=0, leader_epoch=wanted, current_leader_epoch=current
        )
        one = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[asked])
        [found] = wire.ask(OffsetForLeaderEpochRequest(topics=[one]), 4).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(topic, epoch, epoch) == (0, epoch, 2)
    assert ask(topic, epoch + 1) == (0, -1, -1)
    assert ask(topic, epoch, epoch + 1) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ask("missing", 0) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
