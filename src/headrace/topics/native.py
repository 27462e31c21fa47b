"""Native topics as values. All positions are offsets; the layout converts them to entry ids."""

import math
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import StoredBatch, Topic

STORAGE, SEQUENCE_BITS, ADOPTED = "headrace.storage", "offset.sequence.bits", "headrace.adopted"
"""Keys of a topic's configuration."""
FIXED = (STORAGE, SEQUENCE_BITS)
"""Keys that are fixed at creation."""
DEFAULT_BITS = 10
RELEASED = "~released"
"""Redis consumer with the entries that any member of a share group may acquire. No member may have this name."""
DEAD = "~dead"
"""Redis consumer with the entries of a share group that wait for their copies in the dead letter topic."""


class GroupGone(Exception):
    """The Redis consumer group does not exist: it was destroyed, or lost with its stream."""


class GroupPassed(Exception):
    """Another broker has read for the group: the member must enter again."""


class NotAStream(StorageUnavailable):
    """The key of a partition's stream has another type. Raised until it is a stream again."""


class NativeStream(msgspec.Struct, frozen=True):
    """A partition's stream and the sequence bits of its offsets."""

    key: str
    bits: int


class Extent(msgspec.Struct, frozen=True):
    """Current bounds of a native partition."""

    log_start: int = 0
    log_end: int = 0
    added: int = 0
    """Entries ever added."""
    length: int = 0
    asked: float = math.inf
    """Time of the request (`time.monotonic`). An earlier response is no newer than this one."""


class NativeRead(msgspec.Struct, frozen=True):
    """Entries as record batches stamped with their offsets."""

    batches: list[StoredBatch]
    entries: int
    """Number of entries, unservable ones included."""
    more: bool
    """Whether more entries may follow."""
    unfit: tuple[str, ...]
    """Ids of entries that are not served: without an offset, or too large for a record."""
    first: int
    """Offset of the first entry, or if it has none, the last of its millisecond. 0: no entries."""
    following: int
    """Offset after all entries. 0: no entries."""
    extent: Extent
    """Bounds right after the read."""
    last_id: str = ""
    """Id of the last entry. Empty: no entries."""
    wants: int = 0
    """Bytes of the first entry if it exceeds the limit. Then nothing was read."""


class Entered(msgspec.Struct, frozen=True):
    """State of a partition's group as a member begins to read."""

    last_id: str
    """The group's last delivered id."""
    next_offset: int
    """Offset after it."""
    pending: int
    """Entries delivered to any consumer and not acknowledged."""


class Delivered(NamedTuple):
    """Consecutive offsets of entries with the same number of deliveries."""

    first: int
    last: int
    deliveries: int


class Limits(NamedTuple):
    """Limits of a share group."""

    lock_ms: int
    deliveries: int
    window: int
    """Maximum pending entries in a partition, those of Redis programs included."""
    dead_letters: bool = False
    """Whether rejected entries and those at the maximum number of deliveries are kept for their copies (`DEAD`)."""


class ShareRead(msgspec.Struct, frozen=True):
    """Entries that a member of a share group has acquired."""

    batches: list[StoredBatch]
    acquired: list[Delivered]
    """Their offsets in order, without gaps inside a range."""
    spent: list[Delivered]
    """Entries at the maximum number of deliveries: acknowledged without a delivery, or kept for their copies."""
    unfit: tuple[str, ...]
    """Ids of entries that are not served. They are acknowledged."""
    pending: int
    """Pending entries of the group."""
    more: bool
    wants: int = 0
    """Bytes of the first entry if it exceeds the limit. Then nothing was acquired."""


class Outcome(Enum):
    """What becomes of an acquired entry."""

    DONE = "done"
    """It was accepted, or it is a gap: it is not delivered again."""
    REJECT = "reject"
    """It is done, or waits for its copy in the dead letter topic."""
    RELEASE = "release"
    """It is available again. Its number of deliveries stays."""
    RENEW = "renew"
    """Its lock begins again."""
    GAP = "gap"
    """As DONE, but the range may have offsets without entries."""


class Acknowledgement(NamedTuple):
    """An outcome of consecutive entries."""

    first: int
    last: int
    outcome: Outcome


class SharePosition(NamedTuple):
    """Position of a share group in a partition."""

    start: int
    """The first offset that is not done."""
    lag: int | None
    """Records that are not done, pending ones included. None: unknown."""
    pending: tuple[tuple[str, int], ...] = ()
    """Consumers with pending entries, and the number of each. See `RELEASED` and `DEAD`."""


class GroupLag(msgspec.Struct, frozen=True):
    """Lag of a Redis consumer group."""

    name: str
    undelivered: int | None
    """None: neither Redis nor a count up to 100,000 determines it."""
    pending: int
    consumers: int


def is_native(topic: Topic) -> bool:
    """Whether a topic's partitions are plain Redis Streams."""
    return topic.config.get(STORAGE, "").strip() == "native"


def bits_of(topic: Topic) -> int:
    """Return the sequence bits of a topic's offsets."""
    return int(topic.config.get(SEQUENCE_BITS, DEFAULT_BITS))


def adopted(topic: Topic) -> set[int]:
    """Return partitions whose streams existed before the topic."""
    return _adopted(topic.config)


def with_adopted(config: dict[str, str], partition: int) -> dict[str, str]:
    """Return the configuration with one more adopted partition."""
    return config | {ADOPTED: ",".join(str(number) for number in sorted(_adopted(config) | {partition}))}


def _adopted(config: Mapping[str, str]) -> set[int]:
    return {int(number) for number in config.get(ADOPTED, "").split(",") if number.strip()}
