"""What balanced groups and their APIs share: where a group starts, and the cursor an instance carries.

Source of the terms: OCI Streaming's CreateGroupCursor, GetMessages and GetGroup. An offset in here is always the next
one to read, as in Kafka; an API that shows the last one committed subtracts.
"""

from enum import Enum

import msgspec


class StartKind(Enum):
    """Where a group begins to read. The values are OCI's names."""

    TRIM_HORIZON = "TRIM_HORIZON"
    """The oldest record; while nothing is committed, the oldest remaining one."""
    LATEST = "LATEST"
    """Whatever is published from now on."""
    AT_TIME = "AT_TIME"
    """The first record with the time or a later one; the time may lie in the future."""


class Start(msgspec.Struct, frozen=True):
    """A start as a client asks for it."""

    kind: StartKind
    time_ms: int | None = None
    """Milliseconds since the epoch; needed for AT_TIME, else unused."""


class GroupCursor(msgspec.Struct, frozen=True, kw_only=True):
    """State that an instance sends with each request. The API signs and encodes it; the group trusts it."""

    group: str
    instance: str
    incarnation: int
    """Which CreateGroupCursor of the group it comes from. The newest one used under a name may commit."""
    epoch: int
    """Raised by UpdateGroup: offsets of an older one are not committed."""
    generation: int
    """How often ownership had changed when it was issued: tells whether a partition has been away since."""
    timeout_ms: int
    commit_on_get: bool
    offsets: tuple[tuple[int, int], ...] = ()
    """(partition, next offset), in the order they were read: delivered by this chain, and not committed when this
    cursor was issued."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """One partition of a group, as tools see it."""

    partition: int
    committed: int | None
    """The committed position (next offset); None when nothing was committed since the group was made or updated."""
    instance: str | None
    """The owner; None: no owner."""
    reserved_until_ms: int | None
    """When the reservation ends without further requests; None: no owner."""
