"""A group's stored form, shared by the machine (which writes it) and the store (which keeps it)."""

from uuid import UUID

import msgspec

from headrace.groups.instances.model import StartKind


# A group's settings, with Kafka's broker defaults but for the initial delay.
class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times (ms) of every group of a server, with Kafka's names."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 100  # group.initial.rebalance.delay.ms (Kafka: 3 000)
    max_size: int = 10_000  # group.max.size (Kafka has no limit)
    max_metadata_bytes: int = 16 << 20  # headrace.group.max.bytes
    max_groups: int = 20_000  # headrace.max.groups: of one virtual cluster
    offset_metadata_max: int = 4_096  # offset.metadata.max.bytes (Kafka counts characters, and so do we)
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    new_member_join_timeout_ms: int = 300_000
    """How long a new member's held join keeps it in a group (a constant in Kafka).

    Without a limit, clients that give up and join again under a new id would accumulate.
    """


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a classic group as it must survive a restart of the server."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupHeader(msgspec.Struct, frozen=True, kw_only=True):
    """State of a group other than members and offsets."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    empty_since_ms: int | None
    """Since when the group has had no members (retention of its positions counts from here)."""
    unsettled: bool = False
    """A member has left since `generation` was assigned: after a restart the others must rejoin."""


class OffsetAndMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A committed offset: the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0
    topic_id: UUID | None = None
    """Id of its topic, which differs from a later one of the same name. None: written by an older server."""


class TopicPartition(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """A partition by the name of its topic."""

    topic: str
    partition: int


class StoredInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a balanced section as it must survive a restart of the server."""

    name: str
    incarnation: int
    """The CreateGroupCursor whose cursors may commit."""
    timeout_ms: int
    commit_on_get: bool
    joined: int
    """The section's generation when it came in; older cursors of its name are from before it was lost."""
    lost: dict[int, int] = {}
    """Partition -> the generation in which it was taken from the instance by force."""


class StoredOwner(msgspec.Struct, frozen=True, gc=False):
    """Who holds a partition of a balanced section."""

    instance: str
    generation: int
    """The generation in which it was granted."""


class StoredStart(msgspec.Struct, frozen=True, gc=False):
    """Where a partition of a balanced section began; kept until something is committed there."""

    offset: int
    kind: StartKind
    not_before_ms: int | None = None
    """The partition had no record of this time or later yet: the first one that is, is where it begins."""


class StoredBalanced(msgspec.Struct, frozen=True, kw_only=True):
    """A balanced section: the part of a group that shares out one topic. Its positions are the group's."""

    topic: str
    created_ms: int
    epoch: int
    """Counts on from `created_ms`."""
    generation: int
    incarnations: int
    """How many cursors were created."""
    retention_ms: int
    """How long the section stays without being used; below 0: for ever."""
    used_ms: int
    """When it was last used, coarsely."""
    instances: tuple[StoredInstance, ...]
    """In the order in which they joined."""
    owners: tuple[StoredOwner | None, ...]
    """By partition."""
    starts: dict[int, StoredStart]
    """By partition; only those where nothing was committed yet."""
    topic_id: UUID | None = None
    """As a position's."""
    valid_from: dict[int, int] = {}
    """Partition -> the generation from which on cursors' offsets may be committed; only those where it is not 0."""


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything kept of a group."""

    name: str
    header: GroupHeader | None
    members: tuple[StoredMember, ...]
    positions: dict[TopicPartition, OffsetAndMetadata]
    balanced: tuple[StoredBalanced, ...] = ()
    """One section per topic."""


def is_nothing(group: StoredGroup) -> bool:
    """Whether nothing is kept of it: it does not exist, or has ended."""
    return group.header is None and not (group.members or group.positions or group.balanced)


class SaveHeader(msgspec.Struct, frozen=True):
    """Replace the header."""

    header: GroupHeader


class SaveMember(msgspec.Struct, frozen=True):
    """Add or replace a member."""

    member: StoredMember


class DropMember(msgspec.Struct, frozen=True):
    """Remove a member."""

    member_id: str


class SaveOffsets(msgspec.Struct, frozen=True):
    """Add or replace positions."""

    positions: dict[TopicPartition, OffsetAndMetadata]


class DropOffsets(msgspec.Struct, frozen=True):
    """Remove positions."""

    partitions: tuple[TopicPartition, ...]


class SaveBalanced(msgspec.Struct, frozen=True):
    """Add or replace a balanced section."""

    section: StoredBalanced


class DropBalanced(msgspec.Struct, frozen=True):
    """Remove a balanced section; its positions stay."""

    topic: str


class DropGroup(msgspec.Struct, frozen=True):
    """Remove the group with everything it has."""


GroupChange = SaveHeader | SaveMember | DropMember | SaveOffsets | DropOffsets | SaveBalanced | DropBalanced | DropGroup
