"""Results of requests to a group, and effects for its runner (`headrace.machines.effects`)."""

import msgspec

from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import (
    Commit,
    DeleteGroup,
    DeleteOffsets,
    EndOffsets,
    Heartbeat,
    Join,
    Leave,
    Request,
    Sync,
    TxnOffsetCommit,
)
from headrace.groups.instances.events import InstanceRefused, InstanceResult
from headrace.groups.model import GroupChange, TopicPartition
from headrace.groups.sharing.events import (
    AlterShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareOffsetsResult,
    ShareResult,
)
from headrace.groups.timers import TimerKey
from headrace.machines import effects as machines


class JoinMember(msgspec.Struct, frozen=True, gc=False):
    """A member with its metadata for the chosen protocol, for the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a join. Only the leader gets `members`."""

    error: GroupError | None = None
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinMember, ...] = ()


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a sync. An assignment may be empty."""

    error: GroupError | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a heartbeat."""

    error: GroupError | None = None


class LeftMember(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one member of a leave. Ids are as in the request."""

    member_id: str
    instance_id: str | None
    error: GroupError | None = None


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a leave. With `error`, `members` is empty."""

    error: GroupError | None = None
    members: tuple[LeftMember, ...] = ()


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a commit, transactional or not, per partition. `error` applies to all."""

    error: GroupError | None = None
    partitions: dict[TopicPartition, GroupError | None] = {}


class EndOffsetsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the end of a transaction. Without an error, its offsets are durable."""

    error: GroupError | None = None


class DeleteGroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a deletion of a group."""

    error: GroupError | None = None


class DeleteOffsetsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a deletion of offsets per partition."""

    error: GroupError | None = None
    partitions: dict[TopicPartition, GroupError | None] = {}


ClassicResult = (
    JoinResult
    | SyncResult
    | HeartbeatResult
    | LeaveResult
    | CommitResult
    | EndOffsetsResult
    | DeleteGroupResult
    | DeleteOffsetsResult
)
Result = ClassicResult | InstanceResult | ConsumerHeartbeatResult | ShareResult


Effect = machines.Effect[GroupChange, TimerKey, Result]
"""An effect for the runner."""


def refusal(request: Request, error: GroupError, why: str = "") -> Result:  # noqa: PLR0911 - one line per request
    """Return the result that rejects a request. Instances are asked to retry, with the reason."""
    match request:
        case Join():
            return JoinResult(error=error, member_id=request.member_id)
        case Sync():
            return SyncResult(error=error)
        case Heartbeat():
            return HeartbeatResult(error=error)
        case Leave():
            return LeaveResult(error=error)
        case Commit() | TxnOffsetCommit():
            return CommitResult(error=error, partitions=dict.fromkeys(request.positions, error))
        case EndOffsets():
            return EndOffsetsResult(error=error)
        case DeleteGroup():
            return DeleteGroupResult(error=error)
        case DeleteOffsets():
            return DeleteOffsetsResult(error=error, partitions=dict.fromkeys(request.partitions, error))
        case ConsumerHeartbeat():
            return ConsumerHeartbeatResult(error=error, message=why, member_id=request.member_id)
        case ShareHeartbeat():
            return ShareHeartbeatResult(error=error, message=why, member_id=request.member_id)
        case AlterShareOffsets() | DeleteShareOffsets():
            return ShareOffsetsResult(error=error, message=why)
        case _:
            return InstanceRefused(InstanceProblem.UNAVAILABLE, f"the group is not available: {why or error.name}")
