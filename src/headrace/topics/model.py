"""Topics as values, and Kafka's rules for topic names."""

import re
from collections.abc import Callable
from uuid import UUID

import msgspec

from headrace.topics.errors import InvalidTopicName
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.transactions import Transactions


class Topic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic as stored in the topic registry.

    `streams[i]` is the Redis key of partition i's stream. It is stored, not computed, so that a re-created log can have
    another key.
    """

    name: str
    id: UUID
    streams: tuple[str, ...]
    config: dict[str, str]
    """Values set on the topic itself."""
    created_ms: int
    replication_factor: int = 1
    """Number of replicas reported to clients. Not stored if 1, as in earlier versions."""

    @property
    def partitions(self) -> int:
        """Number of partitions."""
        return len(self.streams)


class OpenedLog(msgspec.Struct, frozen=True, kw_only=True):
    """State of a recovered log."""

    log_start: int
    """First readable offset."""
    next_offset: int
    """The log end offset."""
    epochs: LeaderEpochs
    """The last leader epoch is the new one."""
    producers: dict[int, ProducerStateEntry]
    """Idempotent producers by id."""
    unsaved: frozenset[int] = frozenset()
    """Producers whose state differs from the snapshot, and forgotten ones that it has."""
    high_watermark: int = 0
    """The last stored value, possibly an earlier one. 0: none."""
    transactions: Transactions | None = msgspec.field(default_factory=Transactions)
    """None: their index is lost, and only all batches of the log can restore it."""


class Append(msgspec.Struct, frozen=True, gc=False):
    """A record batch to append. Its header and CRC are checked."""

    batch: bytearray | memoryview
    """Writable: the leader stamps its offset."""
    span: int
    """Number of offsets: last offset delta + 1."""
    max_timestamp: int
    """Milliseconds since the epoch. -1: no record has a timestamp."""
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transaction: str | None = None
    """Transactional id of a transactional batch, empty if its request has none. None for other batches."""
    adds_partition: bool = False
    """Whether the batch adds its partition to the transaction (KIP-890), which otherwise includes it already."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Result of an append."""

    base_offset: int
    duplicate: bool = False
    """A batch with the same sequences exists at `base_offset`."""


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch of the log, stamped with its base offset and leader epoch.

    A reader of joined batches gets several contiguous ones as one.
    """

    base_offset: int
    next_offset: int
    batch: bytes | memoryview
    """A memoryview is writable and not shared."""
    count: int = 1
    """Number of batches."""


AppendDone = Callable[[Appended | Exception], None]
"""Called with the batch's offset, or an error if it is not stored."""
PlaceDone = Callable[[Exception | None], None]
"""Called with None once the batch is acknowledged, or with an error."""
Lost = Callable[[Exception], None]
"""Called once with the reason when a log must be recovered."""


MAX_LENGTH = 249
"""Kafka's limit: 255 characters of a file name, less the suffixes of log directories."""

CONSUMER_OFFSETS = "__consumer_offsets"
RESERVED = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state", "__cluster_metadata"})
"""Kafka's internal topics. Clients may not create or write them."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise InvalidTopicName with the broken rule if `name` is invalid."""
    if not name:
        raise InvalidTopicName("a topic name may not be empty")
    if name in {".", ".."}:
        raise InvalidTopicName(f"a topic may not be called {name!r}")
    if len(name) > MAX_LENGTH:
        raise InvalidTopicName(f"a topic name has at most {MAX_LENGTH} characters, this one has {len(name)}")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(f"topic name {name!r} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'")


def metric_name(name: str) -> str:
    """Return the name with `_` for `.`, as in Kafka's metrics. Two topics must not share it."""
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    """Whether another name could have the same `metric_name`."""
    return "." in name or "_" in name


def is_reserved(name: str) -> bool:
    """Whether it is one of Kafka's internal topics."""
    return name in RESERVED
