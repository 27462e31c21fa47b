"""Events of a share group (KIP-932) and their results."""

from collections.abc import Hashable, Mapping
from uuid import UUID

import msgspec

from headrace.groups.errors import GroupError
from headrace.groups.model import JOIN_EPOCH, LEAVE_EPOCH, Assignment, TopicFacts


class ShareHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """ShareGroupHeartbeat: join, leave, subscribe, or renew the session. The caller has checked access to topics."""

    token: Hashable
    member_id: str
    member_epoch: int
    """0: join. -1: leave."""
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None
    """Subscribed names. None: as before."""
    client_id: str = ""
    client_host: str = ""
    facts: Mapping[str, TopicFacts] = {}
    """The existing ones of `topics`."""


def fault(request: ShareHeartbeat) -> str:
    """Return what is wrong with a heartbeat in any group, with Kafka's message. Empty: nothing."""
    if not request.member_id.strip():
        return "MemberId can't be empty."
    if request.member_epoch < LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if request.member_epoch == JOIN_EPOCH and not request.topics:
        return "SubscribedTopicNames must be set in first request."
    return ""


class PartitionState(msgspec.Struct, frozen=True, gc=False):
    """A share partition that must have a state of at least this epoch."""

    topic: str
    topic_id: UUID
    partition: int
    epoch: int
    """State epoch."""
    begin: int | None = None
    """Altered offset at which the state begins. None: as `share.auto.offset.reset` says."""


class ShareHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a heartbeat."""

    error: GroupError | None = None
    message: str = ""
    """Reason of an error."""
    member_id: str = ""
    member_epoch: int = 0
    waits: bool = False
    """Whether the member should send the next heartbeat soon, because its assignment is about to change."""
    assignment: Assignment | None = None
    """None: as before. Empty: no partitions."""
    states: tuple[PartitionState, ...] = ()
    """States of the assigned partitions, to initialize before the response."""


class AlterShareOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """AlterShareGroupOffsets: begin at other offsets. A group that does not exist is created."""

    token: Hashable
    partitions: Mapping[str, Mapping[int, int]]
    """Offsets of existing partitions by topic."""
    facts: Mapping[str, TopicFacts]
    """All these topics."""


class DeleteShareOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """DeleteShareGroupOffsets: delete the states of topics."""

    token: Hashable
    topics: tuple[str, ...]


class ShareOffsetsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a change of offsets: the states to write or to delete."""

    error: GroupError | None = None
    message: str = ""
    states: tuple[PartitionState, ...] = ()


ShareRequest = ShareHeartbeat | AlterShareOffsets | DeleteShareOffsets
ShareResult = ShareHeartbeatResult | ShareOffsetsResult
