"""What can happen to a group.

`token` names the request that waits for the answer: any hashable value, opaque here, unique among the group's
requests that wait. Every event with a token is answered exactly once, by a `Reply` effect, now or later.
"""

from collections.abc import Hashable
from uuid import UUID

import msgspec

from headrace.groups.instances.events import Delivered, InstanceRequest
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.groups.timers import TimerKey

NO_ID = UUID(int=0)
"""No topic has it: the id of what says none, as positions that an older server wrote."""


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """JoinGroup: a member wants to be in the next generation. Held until the join phase ends."""

    token: Hashable
    member_id: str
    """Empty when the member has none yet."""
    instance_id: str | None
    """The name of a static member (KIP-345)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Versions without this field send the session timeout."""
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the member's favourite first."""
    new_member_id: str
    """The member id to give when one is needed; never used before."""
    member_id_required: bool
    """The request's version is 4 or later: a newcomer is told its id and joins again with it (KIP-394)."""
    skip_assignment_supported: bool
    """The request's version is 9 or later (KIP-814)."""
    reason: str | None = None
    """Why the member joins, in its own words (KIP-800)."""


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """SyncGroup: a member asks for its assignment; the leader brings everyone's. Held until that is known."""

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]
    """By member id; empty but for the leader."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat: a sign of life, answered with what the member should know."""

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """One member named in a LeaveGroup. A static member may be named by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """LeaveGroup: members go at once. Versions 0-2 name one."""

    token: Hashable
    members: tuple[Leaving, ...]


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """OffsetCommit. Generation -1 with an empty member id comes from outside the group (tools, simple consumers).

    The caller has already taken out topics and partitions that do not exist.
    """

    token: Hashable
    generation: int
    member_id: str
    instance_id: str | None
    positions: dict[TopicPartition, OffsetAndMetadata]
    """`committed_ms` is set by the group."""


class TimerFired(msgspec.Struct, frozen=True):
    """A timer's deadline has passed."""

    key: TimerKey


class DeleteGroup(msgspec.Struct, frozen=True):
    """DeleteGroups: remove a group that has no members, with its positions."""

    token: Hashable


class DeleteOffsets(msgspec.Struct, frozen=True):
    """OffsetDelete: remove positions in topics that no member subscribes to."""

    token: Hashable
    partitions: tuple[TopicPartition, ...]


class DropTopic(msgspec.Struct, frozen=True):
    """A topic was deleted: positions in it mean nothing any more. Nobody waits for an answer."""

    topic: str
    topic_id: UUID | None = None
    """Those in a topic of that name with another id stay; None: none does."""
    strict: bool = False
    """Those that say no id stay, too: they are of the topic that has the name by now."""

    def takes(self, said: UUID | None) -> bool:
        """Whether what says this id of its topic, or says none, goes."""
        if self.strict:
            return (said or NO_ID) == self.topic_id
        return said is None or self.topic_id is None or said == self.topic_id


ClassicRequest = Join | Sync | Heartbeat | Leave | Commit | DeleteGroup | DeleteOffsets
ClassicEvent = ClassicRequest | TimerFired | DropTopic
Request = ClassicRequest | InstanceRequest | Delivered
Event = ClassicEvent | InstanceRequest | Delivered
