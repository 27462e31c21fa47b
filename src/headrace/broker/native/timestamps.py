"""Searches a native topic's partition for records by their timestamps.

An entry's ID is the time of its arrival. The records of a batch may have other timestamps.
"""

from typing import TYPE_CHECKING

from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.records.batch import peek
from headrace.records.walk import find_timestamp, max_timestamp

if TYPE_CHECKING:
    from headrace.broker.native.partition import NativePartition

_SCAN_BYTES = 1 << 20


async def find(partition: "NativePartition", timestamp: int, searcher: Searcher) -> FoundOffset:
    """Return the first record with this timestamp (ms) or a later one; see `broker.partition.timestamps.find`."""
    partition.check_readable(0)
    if timestamp in (Special.LATEST, Special.EARLIEST, Special.EARLIEST_LOCAL):
        partition.learn(await partition.storage.extent(partition.place))
        return FoundOffset(partition.log_end if timestamp == Special.LATEST else partition.log_start)
    # Ids are times of arrival, and records may be older than that, but ahead of it only as far as one ever was.
    ahead = await partition.storage.ahead_ms(partition.place)
    if timestamp == Special.MAX_TIMESTAMP:
        return await _find_latest(partition, ahead, searcher)
    at, room = max(0, timestamp - ahead) << partition.place.bits, _SCAN_BYTES
    while True:
        async with searcher.beside.held(room):
            read = await partition.storage.read(partition.place, at, _SCAN_BYTES, first=room)
            for each in read.batches:
                if peek(each.batch).max_timestamp >= timestamp:
                    found = find_timestamp(each.batch, each.base_offset, timestamp)
                    if found is not None:
                        return FoundOffset(*found)
        room = read.wants or _SCAN_BYTES
        if not read.entries and not read.wants:
            return NOT_FOUND
        at = read.following or at


async def _find_latest(partition: "NativePartition", ahead: int, searcher: Searcher) -> FoundOffset:
    best: tuple[int, int] | None = None
    partition.learn(await partition.storage.extent(partition.place))
    before, room = partition.log_end, _SCAN_BYTES
    while True:
        async with searcher.beside.held(room):
            read = await partition.storage.read_last(partition.place, before, _SCAN_BYTES, first=room)
            for each in reversed(read.batches):
                found = max_timestamp(each.batch, each.base_offset)
                if found is not None and (best is None or found[1] >= best[1]):
                    best = found
        room = read.wants or _SCAN_BYTES
        if read.wants:
            continue
        if not read.entries:
            break
        before = read.first
        if best is not None and (before >> partition.place.bits) + ahead < best[1]:
            break
    return NOT_FOUND if best is None else FoundOffset(*best)
