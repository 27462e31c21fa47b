"""A group's stored form, shared by the machine (which writes it) and the store (which keeps it)."""

import msgspec


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
    """What a group has beside members and positions."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    empty_since_ms: int | None
    """Since when the group has had no members (retention of its positions counts from here)."""
    unsettled: bool = False
    """A member has gone since `generation` was assigned: after a restart the rest must rejoin, or its share is lost."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """A committed offset: the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """A partition by the name of its topic."""

    topic: str
    partition: int


class StoredGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything kept of a group."""

    name: str
    header: GroupHeader | None
    members: tuple[StoredMember, ...]
    positions: dict[TopicPartition, Position]


class SaveHeader(msgspec.Struct, frozen=True):
    """Replace the header."""

    header: GroupHeader


class SaveMember(msgspec.Struct, frozen=True):
    """Add or replace a member."""

    member: StoredMember


class DropMember(msgspec.Struct, frozen=True):
    """Remove a member."""

    member_id: str


class SavePositions(msgspec.Struct, frozen=True):
    """Add or replace positions."""

    positions: dict[TopicPartition, Position]


class DropPositions(msgspec.Struct, frozen=True):
    """Remove positions."""

    partitions: tuple[TopicPartition, ...]


class DropGroup(msgspec.Struct, frozen=True):
    """Remove the group with everything it has."""


GroupChange = SaveHeader | SaveMember | DropMember | SavePositions | DropPositions | DropGroup
