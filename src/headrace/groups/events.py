"""Events of a group.

`token` identifies a waiting request, uniquely in its group. Each event with a token gets exactly one `Reply` effect, at
once or later.
"""

from collections.abc import Hashable
from uuid import UUID

import msgspec

from headrace.groups.consumers.events import ConsumerNotice, ConsumerRequest
from headrace.groups.instances.events import Delivered, InstanceRequest
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.groups.pending_offsets import Guard
from headrace.groups.sharing.events import ShareRequest
from headrace.groups.timers import TimerKey

NO_ID = UUID(int=0)
"""Unknown topic id, for example of offsets from an older server."""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """JoinGroup: join the next generation. Held until the join phase ends."""

    token: Hashable
    member_id: str
    """Empty for a new member."""
    instance_id: str | None
    """Name of a static member (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Versions without this field send the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, in order of preference."""
    new_member_id: str
    """Unique member id to use if one is needed."""
    member_id_required: bool
    """Version 4 or later: a new member gets its id and joins again with it (KIP-394)."""
    skip_assignment_supported: bool
    """Version 9 or later (KIP-814)."""
    reason: str | None = None
    """Reason of the join (KIP-800)."""


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """SyncGroup: get the assignment. The leader sends all. Held until the assignment is known."""

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]
    """By member id, from the leader only."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat: renew the session."""

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a LeaveGroup. A static member may be named by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """LeaveGroup: remove members at once. Versions 0-2 name one."""

    token: Hashable
    members: tuple[Leaving, ...]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """OffsetCommit. Tools and simple consumers use generation -1 and an empty member id.

    The caller has removed unknown topics and partitions.
    """

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None
    positions: dict[TopicPartition, OffsetAndMetadata]
    """`committed_ms` is set by the group."""
    knows_member_epochs: bool = True
    """Version 9 or later, which members of consumer groups need."""


class TxnOffsetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """TxnOffsetCommit: store pending offsets of a transaction, which its coordinator has verified.

    Versions below 3 send generation -1 and an empty member id, and are not checked. As for a commit, the caller has
    removed unknown topics and partitions.
    """

    token: Hashable
    transactional_id: str
    producer_id: int
    producer_epoch: int
    generation: int
    member_id: str
    instance_id: str | None
    positions: dict[TopicPartition, OffsetAndMetadata]
    number: int = 0
    """Number of the transaction, from the verification."""
    guard: Guard | None = None
    """The group's guard of the producer from before the verification. It is invalid after an end of a transaction."""


class EndOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """End a transaction: its pending offsets become committed, or are dropped. A repeat changes nothing.

    Generations are not checked: TxnOffsetCommit did.
    """

    token: Hashable
    producer_id: int
    producer_epoch: int
    """Epoch of the end, which may be above that of the offsets. A lower one is INVALID_PRODUCER_EPOCH."""
    commit: bool
    number: int
    """Number of the transaction. Offsets of later ones remain."""


class TransactionLost(msgspec.Struct, frozen=True, kw_only=True):
    """Drop the pending offsets of a transaction that its coordinator does not know. No reply."""

    producer_id: int
    number: int


class TimerFired(msgspec.Struct, frozen=True):
    """A timer's deadline has passed."""

    key: TimerKey


class DeleteGroup(msgspec.Struct, frozen=True):
    """DeleteGroups: remove a group without members, with its offsets."""

    token: Hashable


class DeleteOffsets(msgspec.Struct, frozen=True):
    """OffsetDelete: delete offsets of topics without subscription."""

    token: Hashable
    partitions: tuple[TopicPartition, ...]


class DropTopic(msgspec.Struct, frozen=True):
    """Delete the offsets of a deleted topic. No reply."""

    topic: str
    topic_id: UUID | None = None
    """Keep offsets with another topic id. None: keep none."""
    strict: bool = False
    """Also keep offsets without a topic id, which belong to the current topic of that name."""

    def takes(self, said: UUID | None) -> bool:
        """Return whether to delete offsets with this topic id."""
        if self.strict:
            return (said or NO_ID) == self.topic_id
        return said is None or self.topic_id is None or said == self.topic_id


ClassicRequest = Join | Sync | Heartbeat | Leave | Commit | TxnOffsetCommit | EndOffsets | DeleteGroup | DeleteOffsets
ClassicEvent = ClassicRequest | TimerFired | DropTopic | TransactionLost
UnsharedRequest = ClassicRequest | InstanceRequest | Delivered | ConsumerRequest
Request = UnsharedRequest | ShareRequest
Notice = TimerFired | DropTopic | TransactionLost | ConsumerNotice
"""Events without a reply."""
UnsharedEvent = UnsharedRequest | Notice
Event = Request | Notice
