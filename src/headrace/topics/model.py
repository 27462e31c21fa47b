"""Topics as values: what the broker decides and the store keeps, and Kafka's rules for topic names."""

import re
from collections.abc import Callable
from uuid import UUID

import msgspec

from headrace.topics.errors import InvalidTopicName
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.producer_state import ProducerStateEntry


class Topic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic as stored in the topic registry.

    `streams[i]` is the Redis key of partition i's stream: stored, never computed again, so that a new log
    generation (re-creation, later compaction) can live under another key.
    """

    name: str
    id: UUID
    streams: tuple[str, ...]
    config: dict[str, str]
    """Only what was set on the topic; the rest comes from the broker's defaults."""
    created_ms: int
    replication_factor: int = 1
    """Number of replicas reported to clients. Left out if it is 1, as in earlier versions."""

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.streams)


class OpenedLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a server learns when it opens a log."""

    log_start: int
    """First offset that may be read."""
    next_offset: int
    """Log end: the offset the next record gets."""
    epochs: LeaderEpochs
    """The leader epochs; the last one is that of this opening."""
    producers: dict[int, ProducerStateEntry]
    """The idempotent producers, by id."""
    unsaved: frozenset[int] = frozenset()
    """Those of them that the snapshot has not as they are, and those that it has and that are forgotten."""
    high_watermark: int = 0
    """As it was written down last: the present one or an earlier one; 0 where none was."""


class Append(msgspec.Struct, frozen=True, gc=False):
    """One record batch on its way into a partition. Its header and CRC have been checked."""

    batch: bytearray | memoryview
    """Writable, because the leader stamps its offset."""
    span: int
    """Offsets it takes: last offset delta + 1."""
    max_timestamp: int
    """Milliseconds since the epoch; -1 when none of its records has one."""
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The answer to an append."""

    base_offset: int
    duplicate: bool = False
    """True when a batch with the same producer sequences was already there; `base_offset` is then the first one's."""


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch as it lies in the log, stamped with its base offset and leader epoch.

    Where a reader asked for joined ones it may be several that lie behind each other without a gap.
    """

    base_offset: int
    next_offset: int
    batch: bytes | memoryview
    """A view is writable, and this batch's alone."""
    count: int = 1
    """How many batches it is."""


AppendDone = Callable[[Appended | Exception], None]
"""Gets where the batch lies, or why it is not stored."""
PlaceDone = Callable[[Exception | None], None]
"""Gets None once the batch is acknowledged, or why it is not."""
Lost = Callable[[Exception], None]
"""Called once with the reason when a log must be recovered."""


MAX_LENGTH = 249
"""Kafka's limit: a file name's 255 characters less what its log directories add."""

CONSUMER_OFFSETS = "__consumer_offsets"
RESERVED = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Kafka's internal topics, which no client may create or write."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise InvalidTopicName, with the rule that is broken, unless `name` may be a topic's."""
    if not name:
        raise InvalidTopicName("a topic name may not be empty")
    if name in {".", ".."}:
        raise InvalidTopicName(f"a topic may not be called {name!r}")
    if len(name) > MAX_LENGTH:
        raise InvalidTopicName(f"a topic name has at most {MAX_LENGTH} characters, this one has {len(name)}")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(f"topic name {name!r} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'")


def metric_name(name: str) -> str:
    """What two topics must not share: Kafka's metrics write both `.` and `_` as `_`."""
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    """Whether another name could have the same `metric_name`."""
    return "." in name or "_" in name


def is_reserved(name: str) -> bool:
    """Whether a topic of this name is Kafka's own."""
    return name in RESERVED
