"""Responses beyond their memory: no client waits for itself, or for another that does."""

from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetCommitRequest, OffsetFetchRequest
from headrace.testing import server

PARTITIONS, GROUPS = 1_000, 8
PATIENCE_S = 60


def test_offsets_of_more_groups_than_fit_into_memory_block_no_client() -> None:
    """Each group was counted by itself: the request, and all later fetches, waited for memory that it held."""
    committed = OffsetCommitRequest.OffsetCommitRequestPartition
    groups = [f"g{number}" for number in range(GROUPS)]
    with (
        server(headrace_reads_bytes=1 << 20) as started,
        Wire(started.kafka, timeout_s=PATIENCE_S) as wire,
        Wire(started.kafka, timeout_s=PATIENCE_S) as other,
    ):
        wire.create("t", PARTITIONS)
        assert wire.produce("t", batch(b"x")).error_code == 0
        places = [
            committed(partition_index=index, committed_offset=0, committed_metadata="") for index in range(PARTITIONS)
        ]
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=places)]
        for group in groups:
            wire.ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
        asked = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
        for _ in range(3):
            wire.send(OffsetFetchRequest(groups=asked), 8)
        assert other.fetch("t", 0).records
        for _ in range(3):
            answers = wire.receive().groups
            assert [answer.group_id for answer in answers] == groups
            told = [answer for answer in answers if answer.error_code == 0]
            assert 0 < len(told) < GROUPS
            assert all(len(answer.topics[0].partitions) == PARTITIONS for answer in told)
            assert {answer.error_code for answer in answers[len(told) :]} == {Code.POLICY_VIOLATION}
