"""Requests about groups on the wire."""

from typing import Any
from uuid import UUID

from tests.harness.wire import NO_ID, Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

SESSION_MS = 30_000
IDS_FROM = 10
"""The version from which OffsetCommit and OffsetFetch name topics by their ids."""


def topic_id(wire: Wire, topic: str) -> UUID:
    """A topic's id, one that no topic has if there is none of that name."""
    found: UUID = wire.metadata(topic).topics[0].topic_id
    return found if found != NO_ID else UUID(int=7)


def join_request(
    group: str, member: str = "", *, instance: str | None = None, metadata: bytes = b"m", protocol: str = "range"
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=protocol, metadata=metadata)],
    )


def join(wire: Wire, group: str, *, instance: str | None = None, version: int = 7) -> Any:
    """Join with an empty member id, and again with the id that was given out; the last answer."""
    answer = wire.ask(join_request(group, instance=instance), version)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        answer = wire.ask(join_request(group, answer.member_id), version)
    return answer


def sync(wire: Wire, group: str, joined: Any, assignments: dict[str, bytes] | None = None, *, version: int = 5) -> Any:
    return wire.ask(
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        ),
        version,
    )


def commit(
    wire: Wire,
    group: str,
    positions: dict[tuple[str, int], int],
    *,
    generation: int = -1,
    member: str = "",
    metadata: str | None = "",
    version: int = 8,
) -> list[int]:
    """Commit; the error codes in order."""
    ids = {topic: topic_id(wire, topic) for topic, _ in positions} if version >= IDS_FROM else {}
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic,
            topic_id=ids.get(topic, NO_ID),
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
        for (topic, partition), offset in positions.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )
    return [one.partitions[0].error_code for one in wire.ask(request, version).topics]


def committed(wire: Wire, group: str, topic: str, *, version: int = 8) -> tuple[int, str | None, int]:
    """Committed offset of partition 0, its note, and the error code."""
    if version >= 8:
        named = topic_id(wire, topic) if version >= IDS_FROM else NO_ID
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, topic_id=named, partition_indexes=[0])
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[asked])]
        [answer] = wire.ask(OffsetFetchRequest(groups=groups), version).groups
        assert answer.error_code == 0
    else:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        answer = wire.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
        assert version < 2 or answer.error_code == 0
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata, found.error_code
