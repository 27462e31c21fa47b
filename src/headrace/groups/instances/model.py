"""Types of balanced groups and their APIs: start positions and cursors.

The terms are those of OCI Streaming's CreateGroupCursor, GetMessages and GetGroup. Offsets are the next to read, as in
Kafka. An API that returns the last committed one subtracts.
"""

from enum import Enum

import msgspec


class StartKind(Enum):
    """Start of a group, with OCI's names."""

    TRIM_HORIZON = "TRIM_HORIZON"
    """The oldest record. Until the first commit, the oldest remaining one."""
    LATEST = "LATEST"
    """Records published from now on."""
    AT_TIME = "AT_TIME"
    """The first record at or after a time, which may be in the future."""


class Start(msgspec.Struct, frozen=True):
    """A requested start."""

    kind: StartKind
    time_ms: int | None = None
    """Milliseconds since the epoch, for AT_TIME."""


class GroupCursor(msgspec.Struct, frozen=True, kw_only=True):
    """State that an instance sends with each request. The API signs and encodes it; the group trusts it."""

    group: str
    instance: str
    incarnation: int
    """Number of its CreateGroupCursor. The newest one used under a name may commit."""
    epoch: int
    """Incremented by UpdateGroup. Offsets of an older epoch are not committed."""
    generation: int
    """Number of ownership changes when it was issued. Shows whether a partition has moved since."""
    timeout_ms: int
    commit_on_get: bool
    offsets: tuple[tuple[int, int], ...] = ()
    """(Partition, next offset) in reading order: delivered by this chain, and not committed when the cursor was issued.
    """


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A partition of a group, as shown to tools."""

    partition: int
    committed: int | None
    """Committed offset. None: no commit since the group was created or updated."""
    instance: str | None
    """Owner, if any."""
    reserved_until_ms: int | None
    """End of the reservation without further requests. None: no owner."""
    is_consumer: bool = False
    """Whether the owner is a consumer of Kafka, shown with its client ID and member ID."""
