"""Manage the partitions of native topics, which all brokers can read and write."""

from collections.abc import Iterable
from functools import partial

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.leadership import Leadership
from headrace.broker.log_ports import NativeStorage
from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.partition import Partition
from headrace.broker.ports import Storage
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import StreamName
from headrace.topics.config import TopicConfig
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError
from headrace.topics.model import Topic
from headrace.topics.native import Extent, NativeStream, NotAStream, bits_of
from headrace.topics.rejected_batches import RejectedBatches

_AT_ONCE = 64


class StreamManager:
    """A virtual cluster's native partitions; implements `PartitionManager`."""

    def __init__(self, storage: Storage, leading: Leadership, clock: Clock, stream_of: StreamName) -> None:
        self.stream_of = stream_of
        self._storage = storage
        self._leading = leading
        self._clock = clock

    async def open(self, topic: Topic, config: TopicConfig, first: int, *, listed: bool = True) -> list[Partition]:
        """Open the partitions from `first`.

        If a key is not a stream, the partition reports an error to clients until it is one.
        """
        found: list[Partition] = []
        indexes = range(first, topic.partitions)
        plain = self._storage.native
        async for part in in_slices(indexes, lambda index: open_partition(topic, index, plain, self._clock), _AT_ONCE):
            found += [partition for _, partition in part]
        for partition in found:
            self._leading.point(partition)
        return found

    def adopt(self, topic: str, partitions: Iterable[Partition]) -> None:
        """Let the partitions check their topic in this registry from now on."""

        async def listed(stream: str) -> bool:
            stored = await self._storage.topics.find(topic)
            return stored is not None and stream in stored.streams

        for native in natives_of(partitions):
            native.listed = partial(listed, native.stream)


def natives_of(partitions: Iterable[Partition]) -> list[NativePartition]:
    """Return the partitions of a native topic; none for other topics."""
    return [partition for partition in partitions if isinstance(partition, NativePartition)]


async def open_partition(
    topic: Topic, index: int, storage: NativeStorage, clock: Clock, *, must_exist: bool = False
) -> NativePartition:
    """Open one partition. Raises TopicError: a required stream is missing or not a stream."""
    stream = NativeStream(topic.streams[index], bits_of(topic))
    try:
        extent = await storage.open(stream, must_exist=must_exist)
    except TopicError as error:
        lasting = isinstance(error, NotAStream) or not isinstance(error, Fenced | StorageUnavailable)
        if must_exist or not lasting:
            raise
        partition = NativePartition(topic.name, index, stream, Extent(), storage, RejectedBatches(clock.ticks_ms))
        partition.go_offline(error)
        return partition
    return NativePartition(topic.name, index, stream, extent, storage, RejectedBatches(clock.ticks_ms))
