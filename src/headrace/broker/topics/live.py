"""A topic while the server runs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID

import msgspec

from headrace.broker.brokers.ownership import Ownership, replicas
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.metrics.counters import TopicCounters
from headrace.records.fallback.header import HeaderFields
from headrace.topics.config import TopicConfig
from headrace.topics.errors import InvalidTopicName, UnknownTopic
from headrace.topics.model import AppendDone, Topic, is_reserved
from headrace.topics.validator import accept

AS_LONG_AS_IT_TAKES = 2**31 - 1
"""Milliseconds: `replica.lag.time.max.ms` bounds it."""


StreamName = Callable[[str, UUID, int], str]
"""(topic name, topic id, partition) -> Redis key of a new partition's stream."""


def not_for_clients(name: str) -> InvalidTopicName:
    """Why clients can neither change nor write a topic."""
    return InvalidTopicName(f"topic {name!r} is internal: clients can neither write nor change it")


class BatchTracer(Protocol):
    """Continues the traces that records belong to; nothing does by default."""

    def appending(self, topic: str, partition: int, batch: Buffer, done: AppendDone) -> AppendDone:
        """A batch is about to be appended; what is to be called with its place in place of `done`."""

    def handed_out(self, topic: str, partition: int, batches: Sequence[Buffer]) -> None:
        """Batches are on their way to a client."""


class TopicListener:
    """Hears of a virtual cluster's topics that come, change and go, in this order; it does nothing by itself."""

    def added(self, live: "LiveTopic") -> None:
        """A topic is there from now on: loaded, created or moved here."""

    def replaced(self, live: "LiveTopic") -> None:
        """A topic's partitions are others, or more, from now on."""

    def deleted(self, live: "LiveTopic") -> None:
        """This broker itself has deleted a topic: what is kept of it elsewhere goes. `left` comes next."""

    def left(self, name: str) -> None:
        """A topic is here no longer, deleted or moved to another virtual cluster."""

    def removed(self, live: "LiveTopic") -> None:
        """A topic was deleted, or another broker has deleted or moved it. Its partitions are closed next."""

    async def forget(self, topic: Topic) -> None:
        """As `left`, where it takes long: no topic is created before this has ended."""

    async def reread(self, name: str) -> None:
        """Another broker has changed a topic first: take over what it has made of it."""


class PartitionManager(Protocol):
    """Makes the partitions of all topics of a virtual cluster that lie in Redis in one way (`headrace.storage`)."""

    @property
    def stream_of(self) -> StreamName:
        """Names a new partition's stream."""

    async def open(self, topic: Topic, config: TopicConfig, first: int, *, listed: bool = True) -> list[Partition]:
        """The partitions from `first` on. `listed`: the registry has the topic with them."""

    def adopt(self, topic: str, partitions: Iterable[Partition]) -> None:
        """They are partitions of this topic from now on: opened here, or moved here as they are."""


class OtherClusters:
    """What a virtual cluster has to know of the others of its server; by itself there are none."""

    def topics(self) -> Iterable[Topic]:
        """Their topics, whose streams are theirs."""
        return ()

    def partitions(self) -> int:
        """How many partitions they have."""
        return 0

    async def has_moved(self, topic: str, stream: str) -> bool:
        """Whether a topic of this name is in one of them by now, and has this stream."""
        return False


class LiveTopic(msgspec.Struct):
    """A topic with its open partitions and its resolved configuration."""

    topic: Topic
    config: TopicConfig
    partitions: list[Partition]
    counted: TopicCounters = msgspec.field(default_factory=TopicCounters)
    tracer: BatchTracer | None = None
    """Who is told of the batches that go in and out; None: nobody."""
    described: Any = None
    """What Metadata keeps of what it answered."""

    internal: bool = False
    """Whether its name is one of Kafka's internal topics."""

    def __post_init__(self) -> None:
        self.internal = is_reserved(self.topic.name)
        self.configure(self.config)

    def configure(self, config: TopicConfig) -> None:
        """Go by another configuration from now on."""
        self.config = config
        for partition in self.partitions:
            partition.want_copies(config.min_insync_replicas)

    def partition(self, index: int) -> Partition:
        """Raises UnknownTopic when there is no such partition."""
        partitions = self.partitions
        if not 0 <= index < len(partitions):
            raise UnknownTopic(f"topic {self.topic.name!r} has {len(partitions)} partitions, no partition {index}")
        return partitions[index]

    @property
    def has_gaps(self) -> bool:
        """Whether its offsets do not count records; see `Readable.has_gaps`."""
        return bool(self.partitions) and self.partitions[0].has_gaps

    @property
    def open_to_all(self) -> bool:
        """Whether every broker may write to it, and not only the leaders of its partitions."""
        return bool(self.partitions) and self.partitions[0].log is None

    @property
    def entry_per_record(self) -> bool:
        """Whether its batches are opened to be stored; see `Partition.entry_per_record`."""
        return bool(self.partitions) and self.partitions[0].entry_per_record

    def replicas(self, ownership: Ownership, index: int) -> list[int]:
        """Node ids of a partition's brokers, the leader first; none while there is no leader."""
        return replicas(ownership, self.partitions[index], self.topic.replication_factor)

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
    ) -> None:
        """Check one record batch and append it to a partition; see `Broker.append` and `topics.validator.accept`.

        `wait_ms`: how long `done` waits for the copies that `min.insync.replicas` asks for, at most; 0: not at all.

        Raises:
            UnknownTopic: there is no such partition. InvalidTopicName: it is an internal topic.
        """
        if self.internal:
            raise not_for_clients(self.topic.name)
        partition = self.partition(index)
        append = accept(batch, self.config, now_ms, zstd_allowed=zstd_allowed, most_bytes=most_bytes, header=header)
        if self.tracer is not None:
            done = self.tracer.appending(self.topic.name, index, batch, done)
        copies = self.config.min_insync_replicas
        if copies == 1:
            partition.append(append, done)
        else:
            partition.append(append, done, copies, wait_ms)
        counted = self.counted
        counted.records_in += append.span
        counted.bytes_in += len(batch)
