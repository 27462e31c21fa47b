"""A group's stored form."""

from enum import Enum
from typing import Annotated
from uuid import UUID

import msgspec

from headrace.groups.configs import NewerGroupSettings
from headrace.groups.instances.model import StartKind
from headrace.groups.sharing.model import StoredSharer, StoredShareTopic

Assignment = tuple[tuple[UUID, tuple[int, ...]], ...]
"""Partitions by topic ID."""

JOIN_EPOCH = 0
"""Member epoch of a request to join a group of a newer kind."""
LEAVE_EPOCH = -1
"""Member epoch of a request to leave one."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times (ms) of all groups of a server, with Kafka's names and defaults except the initial delay."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 100  # group.initial.rebalance.delay.ms (Kafka: 3,000)
    max_size: int = 10_000  # group.max.size (Kafka has no limit)
    max_metadata_bytes: int = 16 << 20  # headrace.group.max.bytes
    max_groups: int = 20_000  # headrace.max.groups: of one virtual cluster
    offset_metadata_max: int = 4_096  # offset.metadata.max.bytes (in characters, as in Kafka)
    max_pending_offsets: int = 10_000
    """Pending offsets of one group. All of a producer's become committed in one event."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    new_member_join_timeout_ms: int = 300_000
    """Time for which a held join keeps a new member (a constant in Kafka).

    Without a limit, clients that give up and join again under a new id would accumulate.
    """
    newer: NewerGroupSettings = NewerGroupSettings()


class StoredMember(msgspec.Struct, frozen=True, kw_only=True):
    """Stored member of a classic group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupKind(Enum):
    """Protocol of a group's members, as ListGroups shows it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    """KIP-848."""
    SHARE = "share"
    """KIP-932."""


class GroupHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a group other than members and offsets. Older servers skip fields that they do not know."""

    generation: int
    """Of a newer kind: its epoch, from which a classic group continues."""
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    empty_since_ms: int | None
    """Since when the group has had no members. Offset retention counts from here."""
    unsettled: bool = False
    """A member has left since `generation` was assigned: after a restart the others must rejoin."""
    kind: GroupKind = GroupKind.CLASSIC
    epoch: int = 0
    """Of a newer kind: raised by each change of members, subscriptions or topics."""
    target_epoch: int = 0
    """Epoch of the last target assignment, at most `epoch`."""


class TopicFacts(msgspec.Struct, frozen=True, gc=False):
    """An existing topic, as a group needs it."""

    topic_id: UUID
    partitions: int
    """Their number."""


class StoredPartitions(msgspec.Struct, frozen=True):
    """Partitions of one topic."""

    topic: str
    topic_id: UUID
    partitions: tuple[int, ...]


class StoredGrants(msgspec.Struct, frozen=True):
    """Partitions of one topic that a member has."""

    topic: str
    topic_id: UUID
    granted: dict[int, tuple[int, ...]]
    """Epoch -> partitions granted in it."""


class StoredConsumer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored member of a consumer group (KIP-848)."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topics: tuple[str, ...] = ()
    """Subscribed names."""
    pattern: str = ""
    """Subscribed regular expression. Empty: none."""
    assignor: str | None = None
    """Server assignor that the member names."""
    epoch: int
    previous_epoch: int
    """Accepted for one request more, because a response may be lost."""
    state: str
    """A `groups.consumers.member.MemberState`."""
    held: tuple[StoredGrants, ...] = ()
    """Including `revoking`."""
    revoking: tuple[StoredPartitions, ...] = ()
    """What the member must give up first."""
    target: tuple[StoredPartitions, ...] = ()
    """What the member should have."""
    has_left: bool = False
    """A static member that left for a while (epoch -2) and keeps its partitions."""
    session_timeout_ms: int | None = None
    """Of a member with the classic protocol only."""
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Of a member with the classic protocol only."""

    @property
    def field(self) -> str:
        """Name in the group's main hash, which older servers skip and delete whole."""
        return f"{CONSUMER_FIELD}{self.member_id}"


CONSUMER_FIELD = "consumer:"
StoredField = StoredConsumer | StoredSharer | StoredShareTopic
"""Value of a field of its own in a group's main hash."""


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


class PendingKey(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """A pending offset's producer and partition."""

    producer_id: int
    partition: TopicPartition


_Count = Annotated[int, msgspec.Meta(ge=0)]


class PendingOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An offset that becomes committed if its transaction is committed."""

    producer_epoch: _Count
    transactional_id: str
    number: _Count
    """Number of the transaction of its transactional ID. A delayed end of an earlier one does not apply."""
    position: OffsetAndMetadata
    overtaken: bool = False
    """A later commit has replaced it: the end of the transaction drops it."""


class StoredInstance(msgspec.Struct, frozen=True, kw_only=True):
    """Stored member of a balanced section."""

    name: str
    incarnation: int
    """The CreateGroupCursor whose cursors may commit."""
    timeout_ms: int
    commit_on_get: bool
    joined: int
    """Generation in which it joined. Older cursors of its name are from before it was lost."""
    lost: dict[int, int] = {}
    """Partition -> the generation in which it was taken away."""


class StoredOwner(msgspec.Struct, frozen=True, gc=False):
    """Owner of a partition of a balanced section."""

    instance: str
    generation: int
    """Generation in which it was granted."""


class StoredStart(msgspec.Struct, frozen=True, gc=False):
    """Start of a partition of a balanced section, kept until the first commit."""

    offset: int
    kind: StartKind
    not_before_ms: int | None = None
    """The partition starts at the first record of this time or later, which did not exist yet."""


class StoredBalanced(msgspec.Struct, frozen=True, kw_only=True):
    """A balanced section: the part of a group that assigns one topic. The group has its offsets."""

    topic: str
    created_ms: int
    epoch: int
    """Starts at `created_ms`."""
    generation: int
    incarnations: int
    """Number of created cursors."""
    retention_ms: int
    """Time for which an unused section remains. Below 0: for ever."""
    used_ms: int
    """Approximate time of the last use."""
    instances: tuple[StoredInstance, ...]
    """In join order."""
    owners: tuple[StoredOwner | None, ...]
    """By partition."""
    starts: dict[int, StoredStart]
    """By partition, until the first commit."""
    topic_id: UUID | None = None
    """As that of an offset."""
    valid_from: dict[int, int] = {}
    """Partition -> the first generation whose cursors may commit, if not 0."""
    targets: dict[int, str] = {}
    """Partition -> instance that should get it, in a group with consumers. Empty: a consumer should."""


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Stored state of a group."""

    name: str
    header: GroupHeader | None
    members: tuple[StoredMember, ...]
    positions: dict[TopicPartition, OffsetAndMetadata]
    balanced: tuple[StoredBalanced, ...] = ()
    """One section per topic."""
    pending: dict[PendingKey, PendingOffset] = {}
    """Offsets of transactions that have not ended here."""
    fields: tuple[StoredField, ...] = ()
    """Members of newer kinds."""


def is_nothing(group: StoredGroup) -> bool:
    """Whether the group has no stored state."""
    some = group.members or group.positions or group.balanced or group.pending or group.fields
    return group.header is None and not some


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
    """Add or replace committed offsets."""

    positions: dict[TopicPartition, OffsetAndMetadata]


class DropOffsets(msgspec.Struct, frozen=True):
    """Remove committed offsets."""

    partitions: tuple[TopicPartition, ...]


class SavePending(msgspec.Struct, frozen=True):
    """Add or replace pending offsets."""

    pending: dict[PendingKey, PendingOffset]


class DropPending(msgspec.Struct, frozen=True):
    """Remove pending offsets. Together with `SaveOffsets`, they become committed."""

    keys: tuple[PendingKey, ...]


class SaveBalanced(msgspec.Struct, frozen=True):
    """Add or replace a balanced section."""

    section: StoredBalanced


class DropBalanced(msgspec.Struct, frozen=True):
    """Remove a balanced section. Its offsets remain."""

    topic: str


class SaveField(msgspec.Struct, frozen=True):
    """Add or replace a member of a newer kind."""

    value: StoredField


class DropField(msgspec.Struct, frozen=True):
    """Remove a member of a newer kind, by the name of its field."""

    field: str


class DropGroup(msgspec.Struct, frozen=True):
    """Remove the group with all its state."""


GroupChange = (
    SaveHeader
    | SaveMember
    | DropMember
    | SaveOffsets
    | DropOffsets
    | SavePending
    | DropPending
    | SaveBalanced
    | DropBalanced
    | SaveField
    | DropField
    | DropGroup
)
