"""Responses of a share group to requests for groups of other kinds (KIP-932).

An empty share group excludes other members too, until it is deleted. In other groups, `groups.group` refuses members
of share groups.
"""

from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.effects import EndOffsetsResult, LeaveResult, LeftMember, Result, refusal
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import (
    Commit,
    DeleteOffsets,
    EndOffsets,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Sync,
    TxnOffsetCommit,
    UnsharedRequest,
)
from headrace.groups.instances.events import Delivered, InstanceRefused


def answer(group: str, request: UnsharedRequest) -> Result:  # noqa: PLR0911 - one line per kind of request
    """Return the result of a request for members or committed offsets, which a share group does not have."""
    match request:
        case Join():
            return refusal(request, GroupError.INCONSISTENT_GROUP_PROTOCOL)
        case Sync() | Heartbeat():
            return refusal(request, GroupError.UNKNOWN_MEMBER_ID)
        case Leave(members=members):
            return LeaveResult(members=tuple(map(_not_a_member, members)))
        case ConsumerHeartbeat():
            return refusal(request, GroupError.GROUP_ID_NOT_FOUND, f"Group {group} is not a consumer group.")
        case Commit() | TxnOffsetCommit() | DeleteOffsets():
            return refusal(request, GroupError.GROUP_ID_NOT_FOUND)
        case EndOffsets():
            return EndOffsetsResult()
        case Delivered():
            return InstanceRefused(InstanceProblem.UNAVAILABLE, f"group {group!r} became a share group")
        case _:
            return InstanceRefused(InstanceProblem.GROUP_IN_USE, f"group {group!r} is a Kafka share group")


def _not_a_member(leaving: Leaving) -> LeftMember:
    unknown = GroupError.UNKNOWN_MEMBER_ID
    return LeftMember(member_id=leaving.member_id, instance_id=leaving.instance_id, error=unknown)
