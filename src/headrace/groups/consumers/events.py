"""Events of a consumer group (KIP-848), their results, and commands for its runner."""

from collections.abc import Collection, Hashable, Mapping, Sequence

import msgspec

from headrace.groups.assignment.holdings import MemberKey
from headrace.groups.errors import GroupError
from headrace.groups.model import Assignment, TopicFacts
from headrace.machines.effects import Command

STATIC_LEAVE_EPOCH = -2
"""Member epoch with which a static member leaves temporarily and keeps its partitions."""


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerGroupHeartbeat. The caller has checked the access to named topics and compiled the pattern."""

    token: Hashable
    member_id: str
    member_epoch: int
    """0: join. -1: leave. -2: leave temporarily, as a static member."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """-1: as before."""
    topics: tuple[str, ...] | None = None
    """Subscribed names. None: as before."""
    pattern: str | None = None
    """Subscribed regular expression. Empty: none. None: as before."""
    server_assignor: str | None = None
    """None: as before."""
    owned: Assignment | None = None
    """What the member has. None: as before."""
    client_id: str = ""
    client_host: str = ""
    connection: int = 0
    """Number of the connection. Later connections have higher numbers."""
    facts: Mapping[str, TopicFacts] = {}
    """The existing ones of `topics`."""


class ConsumerHeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a heartbeat."""

    error: GroupError | None = None
    message: str = ""
    """Reason of an error."""
    member_id: str = ""
    member_epoch: int = 0
    waits: bool = False
    """Whether its partitions or the target are about to change."""
    assignment: Assignment | None = None
    """None: as before. Empty: no partitions."""


class TopicsChanged(msgspec.Struct, frozen=True):
    """Topics were created, deleted, recreated or got partitions. No reply."""

    facts: Mapping[str, TopicFacts | None]
    """None: the topic does not exist."""


class Resolved(msgspec.Struct, frozen=True):
    """Topics that match members' patterns now. No reply. Applies only to members that still have the pattern."""

    members: "Mapping[str, ResolvedPattern]"
    """By member ID."""
    facts: Mapping[str, TopicFacts]
    """All these topics."""


class ResolvedPattern(msgspec.Struct, frozen=True):
    """A pattern with its topics."""

    pattern: str
    topics: frozenset[str]


class Resolve(Command, frozen=True):
    """Find the topics of members' patterns, and answer with `Resolved` now and after each change."""

    patterns: Mapping[str, str]
    """By member ID. Empty: the member has no pattern, or has left."""


class Assign(Command, frozen=True):
    """Compute a target outside the event loop, and answer with `Assigned`. Compared by identity."""

    assignor: str
    members: Mapping[MemberKey, frozenset[str]]
    partitions: Mapping[str, int]
    owners: Mapping[str, Mapping[int, MemberKey]]
    targets: Mapping[str, Mapping[int, MemberKey]]
    instances: Mapping[MemberKey, str]
    """Instance IDs of static members."""
    held: Mapping[str, Mapping[str, Sequence[int]]] = {}
    """Member -> topic -> partitions. Of a share group, instead of the three before it."""


class Assigned(msgspec.Struct, frozen=True):
    """A computed target. No reply."""

    assign: Assign
    targets: Mapping[MemberKey, Mapping[str, Collection[int]]] | None
    """Member -> topic -> partitions. None: the computation failed."""


ConsumerRequest = ConsumerHeartbeat
"""Requests of members."""
ConsumerNotice = TopicsChanged | Resolved | Assigned
"""Events without a reply."""
