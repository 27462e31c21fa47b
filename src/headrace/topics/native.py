"""Native topics as values, shared by the broker and the store.

All positions are offsets. The layout converts them to entry ids.
"""

import math
from collections.abc import Mapping

import msgspec

from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import StoredBatch, Topic

STORAGE, SEQUENCE_BITS, ADOPTED = "headrace.storage", "offset.sequence.bits", "headrace.adopted"
"""Keys of a topic's configuration."""
FIXED = (STORAGE, SEQUENCE_BITS)
"""Those that a topic keeps for ever."""
DEFAULT_BITS = 10


class GroupGone(Exception):
    """The Redis consumer group does not exist: destroyed, or lost with its stream."""


class GroupPassed(Exception):
    """Another broker has read for the group: the member has to enter again before it is given new entries."""


class NotAStream(StorageUnavailable):
    """The key of a partition's stream holds another type. Raised until it is a stream again."""


class NativeStream(msgspec.Struct, frozen=True):
    """A partition's stream and how its ids are offsets."""

    key: str
    bits: int


class Extent(msgspec.Struct, frozen=True):
    """Where a native partition starts and ends just now."""

    log_start: int = 0
    log_end: int = 0
    added: int = 0
    """Entries ever added."""
    length: int = 0
    asked: float = math.inf
    """When Redis was asked (`time.monotonic`): an answer that came before then is no newer than this one."""


class NativeRead(msgspec.Struct, frozen=True):
    """Entries read, as record batches stamped with their offsets."""

    batches: list[StoredBatch]
    entries: int
    """How many there were, those that are not served included."""
    more: bool
    """Whether there may be others behind them, for which there was no room."""
    unfit: tuple[str, ...]
    """Ids of entries that are not served: no offset stands for them, or they are too large for a record."""
    first: int
    """The offset of the first entry; of one without an offset the last of its millisecond. 0 when there are none."""
    following: int
    """The first offset behind all entries. 0 when there are none."""
    extent: Extent
    """As it was right after the read."""
    last_id: str = ""
    """The id of the last entry; empty when there are none."""
    wants: int = 0
    """Bytes of the first entry, where those are more than it might have: then nothing was read."""


class Entered(msgspec.Struct, frozen=True):
    """What a member finds when it begins to read a partition for its group."""

    last_id: str
    """The group's last delivered id."""
    next_offset: int
    """The first offset behind it."""
    pending: int
    """Entries of the group that are delivered and not acknowledged, for all consumers."""


class GroupLag(msgspec.Struct, frozen=True):
    """How far behind a Redis consumer group is."""

    name: str
    undelivered: int | None
    """None where neither Redis nor a count up to 100 000 can tell."""
    pending: int
    consumers: int


def is_native(topic: Topic) -> bool:
    """Whether a topic's partitions are plain Redis Streams."""
    return topic.config.get(STORAGE, "").strip() == "native"


def bits_of(topic: Topic) -> int:
    """How many bits of a topic's offsets hold the sequence."""
    return int(topic.config.get(SEQUENCE_BITS, DEFAULT_BITS))


def adopted(topic: Topic) -> set[int]:
    """Partitions whose streams were there before the topic."""
    return _adopted(topic.config)


def with_adopted(config: dict[str, str], partition: int) -> dict[str, str]:
    """The configuration with one more adopted partition."""
    return config | {ADOPTED: ",".join(str(number) for number in sorted(_adopted(config) | {partition}))}


def _adopted(config: Mapping[str, str]) -> set[int]:
    return {int(number) for number in config.get(ADOPTED, "").split(",") if number.strip()}
