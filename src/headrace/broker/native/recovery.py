"""Opens the partitions of native topics."""

from functools import partial

from headrace.aio.tasks import in_slices
from headrace.broker.native.partition import NativePartition
from headrace.broker.ports import NativeStorage, TopicStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import LiveTopic
from headrace.topics.errors import Fenced, StorageUnavailable, TopicError
from headrace.topics.model import Topic
from headrace.topics.native import Extent, NativeStream, NotAStream, bits_of
from headrace.topics.rejected_batches import RejectedBatches

_AT_ONCE = 64


async def open_partitions(topic: Topic, storage: NativeStorage, clock: Clock, first: int = 0) -> list[NativePartition]:
    """Every partition of a native topic from `first` on.

    One whose key is no stream (any more) does not keep the server from starting: it is opened, and whoever reads or
    writes it is told, until the key is a stream again.
    """
    found: list[NativePartition] = []
    indexes = range(first, topic.partitions)
    async for part in in_slices(indexes, lambda index: open_partition(topic, index, storage, clock), _AT_ONCE):
        found += [partition for _, partition in part]
    return found


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


def point_to_registry(live: LiveTopic, topics: TopicStorage) -> None:
    """The partitions of a native topic ask in that registry from now on whether they are still a topic's."""

    async def listed(stream: str) -> bool:
        stored = await topics.find(live.topic.name)
        return stored is not None and stream in stored.streams

    for native in live.natives:
        native.listed = partial(listed, native.stream)
