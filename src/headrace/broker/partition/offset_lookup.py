"""Look up offsets by time (ListOffsets) in Redis and in the archive."""

from headrace.broker.log_ports import LogLookup
from headrace.broker.partition.remote_log import RemotePartition
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Source
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.topics.model import StoredBatch


async def find(
    storage: LogLookup,
    partition: Source,
    timestamp: int,
    searcher: Searcher,
    cold: RemotePartition | None = None,
    isolation: Isolation = UNCOMMITTED,
) -> FoundOffset:
    """Return the first record at or after a timestamp (ms), or a `Special` offset without a timestamp.

    `LATEST` is the visible end. As in Kafka, records from there on are not found.

    Raises:
        NotLeader: the result may be past the known end of the log.
        StorageUnavailable, ArchiveUnavailable: the log cannot be read.
        MessageTooLarge, CorruptBatch: a batch cannot be searched.
    """
    if timestamp == Special.LATEST:
        await partition.ask_end()
        return FoundOffset(partition.visible_end(isolation))
    if timestamp == Special.EARLIEST:
        return FoundOffset(partition.log_start)
    if timestamp == Special.EARLIEST_LOCAL:
        return FoundOffset(partition.local_start)
    if timestamp in {Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD}:
        return NOT_FOUND if cold is None else _by_upload(partition, timestamp, await cold.end())
    found = await _by_time(storage, partition, timestamp, searcher, cold)
    if 0 <= found.offset < partition.visible_end(isolation):
        return found
    await partition.ask_end()
    return NOT_FOUND


def _by_upload(partition: Source, timestamp: int, end: int) -> FoundOffset:
    if timestamp == Special.EARLIEST_PENDING_UPLOAD:
        return FoundOffset(max(end, partition.log_start))
    return FoundOffset(end - 1) if end > partition.log_start else NOT_FOUND


async def _by_time(
    storage: LogLookup, partition: Source, timestamp: int, searcher: Searcher, cold: RemotePartition | None
) -> FoundOffset:
    if cold is None or partition.log_start == partition.local_start:
        return await _in_log(storage, partition, timestamp, searcher)
    if timestamp != Special.MAX_TIMESTAMP:
        old = await cold.first_at(timestamp, partition.local_start)
        return FoundOffset(*old) if old is not None else await _in_log(storage, partition, timestamp, searcher)
    old, found = await cold.latest(partition.local_start), await _in_log(storage, partition, timestamp, searcher)
    return FoundOffset(*old) if old is not None and old[1] >= found.timestamp else found


async def _in_log(storage: LogLookup, partition: Source, timestamp: int, searcher: Searcher) -> FoundOffset:
    largest = timestamp == Special.MAX_TIMESTAMP
    stream = partition.stream
    stored = await (storage.find_max_timestamp(stream) if largest else storage.find_timestamp(stream, timestamp))
    if stored is None:
        return NOT_FOUND
    found = await searcher.first_at(stored, None if largest else timestamp, 0)
    if found is None:
        return NOT_FOUND
    if found[0] < partition.local_start:
        # A log start in the middle of a batch hides the records before it.
        return await _behind_log_start(storage, partition, stored, found[1] if largest else timestamp, searcher)
    return FoundOffset(*found)


async def _behind_log_start(
    storage: LogLookup, partition: Source, stored: StoredBatch, timestamp: int, searcher: Searcher
) -> FoundOffset:
    following: list[StoredBatch] = [stored]
    while following:
        stored = following[0]
        found = await searcher.first_at(stored, timestamp, partition.local_start)
        if found is not None:
            return FoundOffset(*found)
        following = await storage.read(partition.stream, stored.next_offset, 1)
    return NOT_FOUND
