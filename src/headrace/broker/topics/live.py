"""A topic while the server runs."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import msgspec

from headrace.broker.brokers.ownership import Ownership, replicas
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.topics.record_checker import CheckedBatch, RecordChecker
from headrace.metrics.counters import TopicCounters
from headrace.records.fallback.header import HeaderFields
from headrace.topics.config import TopicConfig
from headrace.topics.errors import InvalidTopicName, UnknownTopic
from headrace.topics.model import AppendDone, Appended, Topic, is_reserved
from headrace.topics.transactions import OpenTransaction
from headrace.topics.validator import accept

AS_LONG_AS_IT_TAKES = 2**31 - 1
"""Milliseconds. `replica.lag.time.max.ms` is the effective limit."""


StreamName = Callable[[str, UUID, int], str]
"""(Topic name, topic id, partition) -> Redis key of a new partition's stream."""


AppendBatch = Callable[[str, "LiveTopic", int, bytearray], Awaitable[object]]
"""Appends a batch at the leader: virtual cluster, topic, partition, batch. Raises TopicError."""


def not_for_clients(name: str) -> InvalidTopicName:
    """Return the error for changes and writes of internal topics."""
    return InvalidTopicName(f"topic {name!r} is internal: clients can neither write nor change it")


class BatchTracer(Protocol):
    """Continues the traces of records."""

    def appending(self, topic: str, partition: int, batch: Buffer, done: AppendDone) -> AppendDone:
        """Note a batch before its append. Return the callback that replaces `done`."""

    def handed_out(self, topic: str, partition: int, batches: Sequence[Buffer]) -> None:
        """Note batches on their way to a client."""


class TopicListener:
    """Notified of changes to a virtual cluster's topics, in this order. Does nothing by default."""

    def added(self, live: "LiveTopic") -> None:
        """A topic was loaded, created or moved here."""

    def replaced(self, live: "LiveTopic") -> None:
        """A topic has other or more partitions."""

    def deleted(self, live: "LiveTopic") -> None:
        """This broker has deleted a topic: remove its other data. `left` follows."""

    def left(self, name: str) -> None:
        """A topic was deleted, or moved to another virtual cluster."""

    def removed(self, live: "LiveTopic") -> None:
        """A topic was deleted, or moved by another broker. Its partitions are closed next."""

    async def forget(self, topic: Topic) -> None:
        """As `left`, for slow work. No topic is created until it ends."""

    async def reread(self, name: str) -> None:
        """Load a topic that another broker has changed first."""


class PartitionManager(Protocol):
    """Creates partitions with one kind of storage in Redis (`headrace.storage`)."""

    @property
    def stream_of(self) -> StreamName:
        """Returns the Redis key of a new partition's stream."""

    async def open(self, topic: Topic, config: TopicConfig, first: int, *, listed: bool = True) -> list[Partition]:
        """Return the partitions from `first` on. `listed`: the registry has them."""

    def adopt(self, topic: str, partitions: Iterable[Partition]) -> None:
        """Take over partitions of a topic, opened or moved here."""


class OtherClusters:
    """Other virtual clusters of the server. By default, none."""

    def topics(self) -> Iterable[Topic]:
        """Return their topics."""
        return ()

    def partitions(self) -> int:
        """Return the number of their partitions."""
        return 0

    async def has_moved(self, topic: str, stream: str) -> bool:
        """Whether one of them now has a topic of this name with this stream."""
        return False

    def find(self, topic_id: UUID) -> "LiveTopic | None":
        """Return a topic of any cluster, or None if it was deleted.

        Raises StorageUnavailable if this is not certain, because some topics are not loaded or unreadable.
        """
        return None

    async def may_end(self, transaction: OpenTransaction, topic_id: UUID, index: int) -> bool:
        """Whether a coordinator of one of them may still end a transaction in a partition, which may have moved.

        False is reliable. Raises TopicError if it is unknown now.
        """
        return False


class LiveTopic(msgspec.Struct):
    """A topic with its open partitions and its resolved configuration."""

    topic: Topic
    config: TopicConfig
    partitions: list[Partition]
    counted: TopicCounters = msgspec.field(default_factory=TopicCounters)
    tracer: BatchTracer | None = None
    """Notified of batches that are written and read, if set."""
    described: Any = None
    """Cached Metadata response."""

    internal: bool = False
    """Whether it has the name of an internal topic of Kafka."""
    checker: RecordChecker | None = None
    """That of the server, once the topic is in a table."""
    checked: bool = False
    """Whether records are or were checked. Batches that wait for their check come before later ones."""

    def __post_init__(self) -> None:
        self.internal = is_reserved(self.topic.name)
        self.configure(self.config)

    def configure(self, config: TopicConfig) -> None:
        """Apply another configuration."""
        self.config = config
        self.checked = self.checked or config.checks is not None
        for partition in self.partitions:
            partition.want_copies(config.min_insync_replicas)

    def partition(self, index: int) -> Partition:
        """Return a partition. Raises UnknownTopic."""
        partitions = self.partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopic(f"topic {self.topic.name!r} has {len(partitions)} partitions, no partition {index}")
        return partitions[index]

    @property
    def has_gaps(self) -> bool:
        """See `Readable.has_gaps`."""
        return bool(self.partitions) and self.partitions[0].has_gaps

    @property
    def open_to_all(self) -> bool:
        """Whether all brokers may write to it, not only leaders."""
        return bool(self.partitions) and self.partitions[0].log is None

    @property
    def entry_per_record(self) -> bool:
        """See `Partition.entry_per_record`."""
        return bool(self.partitions) and self.partitions[0].entry_per_record

    def replicas(self, ownership: Ownership, index: int) -> list[int]:
        """See `brokers.ownership.replicas`."""
        return replicas(ownership, self.partitions[index], self.topic.replication_factor)

    def check_writable(self, index: int) -> None:
        """Raise the error that an append to a partition would get now, whatever its batch is."""
        if self.internal:
            raise not_for_clients(self.topic.name)
        partition = self.partition(index)
        partition.check_led()
        reason = None if partition.log is None else partition.log.fenced_reason
        if reason is not None:
            raise type(reason)(str(reason))

    def append(
        self,
        index: int,
        batch: bytearray | memoryview,
        now_ms: int,
        done: AppendDone,
        *,
        zstd_allowed: bool = True,
        most_bytes: int | None = None,
        header: HeaderFields | None = None,
        wait_ms: int = AS_LONG_AS_IT_TAKES,
        transactional_id: str | None = None,
        adds_partition: bool = False,
    ) -> None:
        """See `Broker.append` and `topics.validator.accept`.

        `wait_ms`: maximum wait of `done` for replicas (`min.insync.replicas`). 0: none.

        Raises:
            UnknownTopic: no such partition. InvalidTopicName: it is an internal topic.
        """
        if self.internal:
            raise not_for_clients(self.topic.name)
        partition = self.partition(index)
        append = accept(
            batch,
            self.config,
            now_ms,
            zstd_allowed=zstd_allowed,
            most_bytes=most_bytes,
            header=header,
            transactional_id=transactional_id,
            adds_partition=adds_partition,
        )
        if self.tracer is not None:
            done = self.tracer.appending(self.topic.name, index, batch, done)
        done = partial(self._count, append.span, len(batch), done)
        copies = self.config.min_insync_replicas
        if self.checked:
            assert self.checker is not None, "the topic is in a table"
            then = partial(partition.append, append, done, copies, wait_ms)
            checked = CheckedBatch(self.topic.name, index, self.config.checks, batch, then, done)
            self.checker.append(partition.stream, checked)
        elif copies == 1:
            partition.append(append, done)
        else:
            partition.append(append, done, copies, wait_ms)

    def _count(self, records: int, size: int, done: AppendDone, result: Appended | Exception) -> None:
        """Count a stored batch before its producer gets the response."""
        if type(result) is Appended and not result.duplicate:
            counted = self.counted
            counted.records_in += records
            counted.bytes_in += size
        done(result)
