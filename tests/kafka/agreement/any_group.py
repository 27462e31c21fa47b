"""Requests about a group of any kind, for the tables."""

from typing import Any, Protocol

from tests.harness.wire import Wire
from tests.kafka.agreement.cases import Answer, name_of

from headrace.protocol import messages as m


class Group(Protocol):
    """A group on a server."""

    wire: Wire
    name: str
    topic: str
    classic: tuple[str, int]
    """Member ID and generation of the classic member that joined last."""


def subscription(topic: str) -> bytes:
    """What a classic consumer sends as its metadata, in version 0."""
    name = topic.encode()
    return b"\0\0" + (1).to_bytes(4) + len(name).to_bytes(2) + name + b"\xff\xff\xff\xff"


def assignment(topic: str) -> bytes:
    """What a classic leader assigns to the only member, in version 0."""
    name = topic.encode()
    partitions = b"".join(index.to_bytes(4) for index in range(4))
    return b"\0\0" + (1).to_bytes(4) + len(name).to_bytes(2) + name + (4).to_bytes(4) + partitions + b"\xff\xff\xff\xff"


def join_classic(
    group: Group, *, protocol_type: str = "consumer", metadata: bytes | None = None, once: bool = False, **said: Any
) -> Answer:
    """JoinGroup, and again with the ID that the server made, unless `once`."""
    request = m.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=metadata or subscription(group.topic))
    fields = {
        "group_id": group.name,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "protocol_type": protocol_type,
        "protocols": [protocol],
        **said,
    }
    answer = group.wire.ask(request(**fields), 9)
    if name_of(answer.error_code) == "MEMBER_ID_REQUIRED" and not once:
        answer = group.wire.ask(request(**{**fields, "member_id": answer.member_id}), 9)
    group.classic = answer.member_id, answer.generation_id
    return Answer(name_of(answer.error_code), None, {"leads": answer.leader == answer.member_id != ""})


def beat_classic(group: Group, member: str | None = None, generation: int = 2) -> Answer:
    """Heartbeat. Without `member`: of the classic member."""
    name, at = group.classic if member is None else (member, generation)
    request = m.HeartbeatRequest(group_id=group.name, generation_id=at, member_id=name)
    return Answer(name_of(group.wire.ask(request, 4).error_code))


def sync_classic(group: Group, member: str | None = None, generation: int = 2) -> Answer:
    """SyncGroup. Without `member`: of the classic member, with all partitions if it leads."""
    name, at = group.classic if member is None else (member, generation)
    given = m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=name, assignment=assignment(group.topic))
    request = m.SyncGroupRequest(
        group_id=group.name,
        generation_id=at,
        member_id=name,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[given],
    )
    return Answer(name_of(group.wire.ask(request, 5).error_code))


def leave_classic(group: Group, member: str, instance: str | None = None) -> Answer:
    """LeaveGroup of one member."""
    identity = m.LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance)
    answer = group.wire.ask(m.LeaveGroupRequest(group_id=group.name, members=[identity]), 5)
    members = [name_of(each.error_code) for each in answer.members]
    return Answer(name_of(answer.error_code), None, {"members": members})


def describe_classic(group: Group, *, version: int = 6) -> Answer:
    """DescribeGroups."""
    [found] = group.wire.ask(m.DescribeGroupsRequest(groups=[group.name]), version).groups
    message = found.error_message if version >= 6 else None
    return Answer(name_of(found.error_code), message, {"state": found.group_state})


def describe_consumers(group: Group) -> Answer:
    """ConsumerGroupDescribe."""
    [found] = group.wire.ask(m.ConsumerGroupDescribeRequest(group_ids=[group.name]), 1).groups
    members = sorted(each.member_id for each in found.members)
    facts = {"state": found.group_state, "members": members, "assignor": found.assignor_name}
    return Answer(name_of(found.error_code), found.error_message, facts)


def describe_sharers(group: Group) -> Answer:
    """ShareGroupDescribe."""
    [found] = group.wire.ask(m.ShareGroupDescribeRequest(group_ids=[group.name]), 1).groups
    members = sorted(each.member_id for each in found.members)
    facts = {"state": found.group_state, "members": members, "assignor": found.assignor_name}
    return Answer(name_of(found.error_code), found.error_message, facts)


def listed(group: Group) -> Answer:
    """ListGroups, and what it says of the group."""
    found = [each for each in group.wire.ask(m.ListGroupsRequest(), 5).groups if each.group_id == group.name]
    return Answer("NONE", None, {"types": [(each.group_type, each.group_state, each.protocol_type) for each in found]})


def delete(group: Group) -> Answer:
    """DeleteGroups."""
    [found] = group.wire.ask(m.DeleteGroupsRequest(groups_names=[group.name]), 2).results
    return Answer(name_of(found.error_code))


def delete_offsets(group: Group) -> Answer:
    """OffsetDelete of partition 0."""
    request = m.OffsetDeleteRequest
    part = request.OffsetDeleteRequestPartition(partition_index=0)
    topic = request.OffsetDeleteRequestTopic(name=group.topic, partitions=[part])
    answer = group.wire.ask(request(group_id=group.name, topics=[topic]), 0)
    parts = [name_of(each.error_code) for topic in answer.topics for each in topic.partitions]
    return Answer(name_of(answer.error_code), None, {"partitions": parts})


def commit_from_outside(group: Group) -> Answer:
    """OffsetCommit without a member, which makes a classic group."""
    request = m.OffsetCommitRequest
    part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
    topic = request.OffsetCommitRequestTopic(name=group.topic, partitions=[part])
    [found] = group.wire.ask(request(group_id=group.name, topics=[topic]), 9).topics
    return Answer(name_of(found.partitions[0].error_code))


def join_consumer(group: Group) -> Answer:
    """ConsumerGroupHeartbeat of a new member."""
    request = m.ConsumerGroupHeartbeatRequest(
        group_id=group.name,
        member_id="consumer",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[group.topic],
        topic_partitions=[],
    )
    answer = group.wire.ask(request, 1)
    return Answer(name_of(answer.error_code), answer.error_message)


def join_sharer(group: Group, member: str = "S") -> Answer:
    """ShareGroupHeartbeat of a new member."""
    request = m.ShareGroupHeartbeatRequest(
        group_id=group.name, member_id=member, member_epoch=0, subscribed_topic_names=[group.topic]
    )
    answer = group.wire.ask(request, 1)
    return Answer(name_of(answer.error_code), answer.error_message)


def leave_sharer(group: Group, member: str = "S") -> Answer:
    """ShareGroupHeartbeat of a member that leaves."""
    request = m.ShareGroupHeartbeatRequest(group_id=group.name, member_id=member, member_epoch=-1)
    answer = group.wire.ask(request, 1)
    return Answer(name_of(answer.error_code), answer.error_message)
