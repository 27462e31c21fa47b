"""Searches a native topic's partition for records by their timestamps.

An entry's ID is the time of its arrival. The records of a batch may have other timestamps.
"""

from headrace.broker.log_ports import NativeStorage
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher
from headrace.records.batch import peek
from headrace.records.walk import find_timestamp, max_timestamp
from headrace.topics.native import NativeStream

_SCAN_BYTES = 1 << 20


async def find_first(storage: NativeStorage, place: NativeStream, timestamp: int, searcher: Searcher) -> FoundOffset:
    """Return the first record with this timestamp (ms) or a later one."""
    # Records may be older than their ids, but ahead only as far as one ever was.
    ahead = await storage.ahead_ms(place)
    at, room = max(0, timestamp - ahead) << place.bits, _SCAN_BYTES
    while True:
        async with searcher.large_reads.held(room):
            read = await storage.read(place, at, _SCAN_BYTES, first=room)
            for each in read.batches:
                if peek(each.batch).max_timestamp >= timestamp:
                    found = find_timestamp(each.batch, each.base_offset, timestamp)
                    if found is not None:
                        return FoundOffset(*found)
        room = read.wants or _SCAN_BYTES
        if not read.entries and not read.wants:
            return NOT_FOUND
        at = read.following or at


async def find_latest(storage: NativeStorage, place: NativeStream, before: int, searcher: Searcher) -> FoundOffset:
    """Return the first of the records before an offset that have the largest timestamp."""
    ahead = await storage.ahead_ms(place)
    best: tuple[int, int] | None = None
    room = _SCAN_BYTES
    while True:
        async with searcher.large_reads.held(room):
            read = await storage.read_last(place, before, _SCAN_BYTES, first=room)
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
        if best is not None and (before >> place.bits) + ahead < best[1]:
            break
    return NOT_FOUND if best is None else FoundOffset(*best)
