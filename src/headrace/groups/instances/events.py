"""What instances ask of a balanced section, and its answers.

`token` names the request, as in `groups.events`. Each request tells how many partitions the topic has and for how long
it keeps records: a section knows its topic only from them.
"""

from collections.abc import Hashable
from uuid import UUID

import msgspec

from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.model import GroupCursor
from headrace.groups.model import StoredStart


class TopicFacts(msgspec.Struct, frozen=True):
    """What a section must know of its topic."""

    name: str
    partitions: int
    retention_ms: int
    """How long the section may be unused before it goes; below 0: for ever."""
    id: UUID | None = None
    """None: not known."""


class CreateCursor(msgspec.Struct, frozen=True, kw_only=True):
    """CreateGroupCursor: a name wants to take part. It is a member with its first get or heartbeat."""

    token: Hashable
    topic: TopicFacts
    instance: str
    timeout_ms: int
    commit_on_get: bool
    starts: tuple[StoredStart, ...] | None
    """Where each partition of a new section begins; None: the section is thought to be there."""
    leader_epochs: tuple[int, ...] = ()
    """Of each partition's log, as of then."""


class Get(msgspec.Struct, frozen=True, kw_only=True):
    """GetMessages: commit what the cursor carries if it says so, and tell what to read. `Delivered` must follow."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Delivered(msgspec.Struct, frozen=True):
    """What a get has read, told before it is answered."""

    topic: str
    read: int
    """The `Plan`'s."""
    offsets: tuple[tuple[int, int], ...]
    """(partition, next offset) of what goes out; empty when the get failed or its client has gone."""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(partition, leader epoch) of what goes out; everything in these logs up to there is what it was."""
    cuts: tuple[tuple[int, int, int], ...] = ()
    """(partition, offset, leader epoch) of logs that lost their end in Redis: new records follow from that offset under
    that leader epoch.
    """
    token: Hashable | None = None
    """Token of a request that waits until this is durable; None: no request."""


class CommitCursor(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerCommit: commit what the cursor carries."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerHeartbeat: a sign of life."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """UpdateGroup: reset every partition's offset."""

    token: Hashable
    topic: TopicFacts
    starts: tuple[StoredStart, ...]
    leader_epochs: tuple[int, ...] = ()
    """Of each partition's log, as of then."""


InstanceRequest = CreateCursor | Get | CommitCursor | Beat | Update


class CursorResult(msgspec.Struct, frozen=True):
    """The cursor to go on with."""

    cursor: GroupCursor


class ReadFrom(msgspec.Struct, frozen=True, gc=False):
    """One partition to read."""

    partition: int
    offset: int
    follows_log_start: bool
    """Begins at the log start should that have moved beyond `offset`."""
    not_before_ms: int | None
    """Begins at the first record of this time or later, at or behind `offset`; until there is one it has none."""
    reached: int = -1
    """Up to where anybody in the section has come, by the log as it was"""
    leader_epoch: int = -1
    """under this leader epoch; -1: not known."""


class Plan(msgspec.Struct, frozen=True):
    """What a get is to read, in this order, and the cursor it answers with once it has added what it read."""

    read: int
    cursor: GroupCursor
    reads: tuple[ReadFrom, ...]


class Taken(msgspec.Struct, frozen=True):
    """It is known for good what a get has read."""


class Updated(msgspec.Struct, frozen=True):
    """The positions are set."""


class InstanceRefused(msgspec.Struct, frozen=True):
    """The request was refused."""

    kind: InstanceProblem
    message: str
    partition: int | None = None

    def error(self) -> InstanceError:
        """The same as an exception."""
        return InstanceError(self.kind, self.message, self.partition)


InstanceResult = CursorResult | Plan | Taken | Updated | InstanceRefused
