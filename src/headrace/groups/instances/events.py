"""Requests of instances to a balanced section, and their results.

`token` is as in `groups.events`. A section knows its topic's partitions and retention only from requests.
"""

from collections.abc import Hashable
from uuid import UUID

import msgspec

from headrace.groups.errors import InstanceError, InstanceProblem
from headrace.groups.instances.model import GroupCursor
from headrace.groups.model import StoredStart


class TopicFacts(msgspec.Struct, frozen=True):
    """Properties of a section's topic."""

    name: str
    partitions: int
    retention_ms: int
    """Time for which an unused section remains. Below 0: for ever."""
    id: UUID | None = None
    """None: unknown."""


class CreateCursor(msgspec.Struct, frozen=True, kw_only=True):
    """CreateGroupCursor. The name becomes a member with its first get or heartbeat."""

    token: Hashable
    topic: TopicFacts
    instance: str
    timeout_ms: int
    commit_on_get: bool
    starts: tuple[StoredStart, ...] | None
    """Start of each partition of a new section. None: the section should exist."""
    leader_epochs: tuple[int, ...] = ()
    """Current leader epoch of each partition."""


class Get(msgspec.Struct, frozen=True, kw_only=True):
    """GetMessages: commit the cursor's offsets if requested, and return what to read. `Delivered` must follow."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Delivered(msgspec.Struct, frozen=True):
    """Result of a get's read, sent before its response."""

    topic: str
    read: int
    """Number of the `Plan`."""
    offsets: tuple[tuple[int, int], ...]
    """(Partition, next offset) of the response. Empty: the get failed or its client disconnected."""
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """(Partition, leader epoch) of the response, up to which these logs are unchanged."""
    cuts: tuple[tuple[int, int, int], ...] = ()
    """(Partition, offset, leader epoch) of logs that lost their end in Redis. New records follow from that offset under
    that leader epoch.
    """
    token: Hashable | None = None
    """Request that waits until this is durable, if any."""


class CommitCursor(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerCommit: commit the cursor's offsets."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerHeartbeat: renew the instance."""

    token: Hashable
    topic: TopicFacts
    cursor: GroupCursor


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """UpdateGroup: reset every partition's offset."""

    token: Hashable
    topic: TopicFacts
    starts: tuple[StoredStart, ...]
    leader_epochs: tuple[int, ...] = ()
    """Current leader epoch of each partition."""


InstanceRequest = CreateCursor | Get | CommitCursor | Beat | Update


class CursorResult(msgspec.Struct, frozen=True):
    """The next cursor."""

    cursor: GroupCursor


class ReadFrom(msgspec.Struct, frozen=True, gc=False):
    """One partition to read."""

    partition: int
    offset: int
    follows_log_start: bool
    """Starts at the log start offset if that has passed `offset`."""
    not_before_ms: int | None
    """Starts at the first record of this time or later, from `offset` on. Until one exists, nothing is read."""
    reached: int = -1
    """Highest offset that any instance reached, in the log"""
    leader_epoch: int = -1
    """of this leader epoch. -1: unknown."""


class Plan(msgspec.Struct, frozen=True):
    """Partitions for a get to read, in order, and its cursor, to which it adds the offsets read."""

    read: int
    cursor: GroupCursor
    reads: tuple[ReadFrom, ...]


class Taken(msgspec.Struct, frozen=True):
    """A get's result is durable."""


class Updated(msgspec.Struct, frozen=True):
    """The offsets are set."""


class InstanceRefused(msgspec.Struct, frozen=True):
    """A rejected request."""

    kind: InstanceProblem
    message: str
    partition: int | None = None

    def error(self) -> InstanceError:
        """Return it as an exception."""
        return InstanceError(self.kind, self.message, self.partition)


InstanceResult = CursorResult | Plan | Taken | Updated | InstanceRefused
