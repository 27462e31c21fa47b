"""Offsets by time: the first record at or after a timestamp, and the one with the largest (ListOffsets)."""

from enum import IntEnum

import msgspec

from headrace.broker.partition import Partition
from headrace.broker.ports import LogStorage
from headrace.records.walk import find_timestamp, max_timestamp, records
from headrace.topics.model import StoredBatch


class Special(IntEnum):
    """Timestamps that are no times (Kafka protocol, ListOffsets)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


class FoundOffset(msgspec.Struct, frozen=True):
    """An offset and the timestamp (ms) of the record there; -1 and -1 when there is none."""

    offset: int
    timestamp: int = -1


NOT_FOUND = FoundOffset(-1)


async def find(storage: LogStorage, partition: Partition, timestamp: int) -> FoundOffset:
    """Look an offset up by time.

    Args:
        storage: where the log is.
        partition: the partition.
        timestamp: milliseconds since the epoch, or a `Special`.

    Returns:
        The first record with this timestamp or a later one. For `EARLIEST` and `LATEST` no timestamp is given.
    """
    if timestamp == Special.LATEST:
        return FoundOffset(partition.log_end)
    if timestamp == Special.EARLIEST:
        return FoundOffset(partition.log_start)
    largest = timestamp == Special.MAX_TIMESTAMP
    stream = partition.stream
    stored = await (storage.find_max_timestamp(stream) if largest else storage.find_timestamp(stream, timestamp))
    if stored is None:
        return NOT_FOUND
    if largest:
        found = max_timestamp(stored.batch, stored.base_offset)
    else:
        found = find_timestamp(stored.batch, stored.base_offset, timestamp)
    if found is None:
        return NOT_FOUND
    if found[0] < partition.log_start:
        # A log start in the middle of a batch hides the records before it.
        return await _behind_log_start(storage, partition, stored, found[1] if largest else timestamp)
    return FoundOffset(*found)


async def _behind_log_start(
    storage: LogStorage, partition: Partition, stored: StoredBatch, timestamp: int
) -> FoundOffset:
    """The first readable record with `timestamp` or a later one, from the batch that holds the log start on."""
    following: list[StoredBatch] = [stored]
    while following:
        stored = following[0]
        for record in records(stored.batch, stored.base_offset):
            if record.offset >= partition.log_start and record.timestamp >= timestamp:
                return FoundOffset(record.offset, record.timestamp)
        following = await storage.read(partition.stream, stored.next_offset, 1)
    return NOT_FOUND
