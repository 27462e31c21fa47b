"""Makes the partitions of native topics, whose records are entries of plain streams that are open to all brokers."""

from collections.abc import Iterable
from functools import partial

from headrace.aio.tasks import in_slices
from headrace.broker.brokers.leadership import Leadership
from headrace.broker.native.partition import NativePartition
from headrace.broker.partition.partition import Partition
from headrace.broker.ports import NativeStorage, Storage
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import StreamName
from headrace.topics.config import TopicConfig
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError
from headrace.topics.model import Topic
from headrace.topics.native import Extent, NativeStream, NotAStream, bits_of
from headrace.topics.rejected_batches import RejectedBatches

_AT_ONCE = 64


class StreamManager:
    """The partitions of the native topics of one virtual cluster: `broker.topics.live.PartitionManager`."""

    def __init__(self, storage: Storage, leading: Leadership, clock: Clock, stream_of: StreamName) -> None:
        """Manage none yet.

        Args:
            storage: where the streams are, and the registry that has them.
            leading: knows where clients are to be sent.
            clock: tells how long a refused batch is waited for.
            stream_of: names a new partition's stream.
        """
        self.stream_of = stream_of
        self._storage = storage
        self._leading = leading
        self._clock = clock

    async def open(self, topic: Topic, config: TopicConfig, first: int, *, listed: bool = True) -> list[Partition]:
        """Open and return the partitions from `first` on.

        A partition whose key is not a stream is opened as well, so that the server can start. Its reads and writes fail
        until the key is a stream again.
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
        """They ask in this registry from now on whether they are still the topic's."""

        async def listed(stream: str) -> bool:
            stored = await self._storage.topics.find(topic)
            return stored is not None and stream in stored.streams

        for native in natives_of(partitions):
            native.listed = partial(listed, native.stream)


def natives_of(partitions: Iterable[Partition]) -> list[NativePartition]:
    """The same, of a native topic; none of another one."""
    return [partition for partition in partitions if isinstance(partition, NativePartition)]


async def open_partition(
    topic: Topic, index: int, storage: NativeStorage, clock: Clock, *, must_exist: bool = False
) -> NativePartition:
    """One partition.

    Raises:
        TopicError: where the stream has to be there already: it is not, or its key is no stream.
    """
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
