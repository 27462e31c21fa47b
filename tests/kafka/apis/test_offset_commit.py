"""OffsetCommit where topics change while it is worked through. The rest: test_offset_commit_wire."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.effects import CommitResult
from headrace.groups.events import Commit
from headrace.kafka.apis.offset_commit import handle
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import OffsetCommitRequest

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


async def test_a_commit_is_of_the_topic_that_was_there_when_its_partitions_were_found() -> None:
    """Made again after the first partition was found: the group refuses what says the first one's id."""
    ids = iter((UUID(int=1), UUID(int=2)))
    taken: list[Commit] = []

    def get(_: str) -> Any:
        return SimpleNamespace(topic=SimpleNamespace(id=next(ids)), partition=lambda _: None)

    async def take(_: str, commit: Commit, _given_up: object) -> CommitResult:
        taken.append(commit)
        return CommitResult(partitions=dict.fromkeys(commit.positions))

    broker = SimpleNamespace(
        topics=SimpleNamespace(referred=get, partition=lambda *_: None),
        groups=SimpleNamespace(request=take),
        lane=CooperativeScheduler(),
    )
    channel: Any = SimpleNamespace(broker=broker)
    context = RequestContext(channel, OffsetCommitRequest.API_KEY, 8, 1, "c", 10)
    partitions = [
        Partition(partition_index=index, committed_offset=5, committed_leader_epoch=-1, committed_metadata=None)
        for index in range(2)
    ]
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[Topic(name="t", partitions=partitions)],
    )
    answering: Any = handle(request, context)
    await answering
    (commit,) = taken
    assert {each.topic_id for each in commit.positions.values()} == {UUID(int=1)}
