"""Offsets by time: the first record at or after a timestamp, and the one with the largest (ListOffsets)."""

import contextlib
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.partition.partition import Source
from headrace.broker.ports import LogLookup
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.decompression import HERE, MOST, USUAL, Decompression
from headrace.records.batch import peek
from headrace.records.compression import NONE
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.records.walk import search
from headrace.topics.errors import CorruptBatch, MessageTooLarge
from headrace.topics.model import StoredBatch

if TYPE_CHECKING:
    from headrace.broker.partition.remote import ColdPartition


class Special(IntEnum):
    """Timestamps that are no times (Kafka protocol, ListOffsets)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4


class FoundOffset(msgspec.Struct, frozen=True):
    """An offset and the timestamp (ms) of the record there; -1 and -1 when there is none."""

    offset: int
    timestamp: int = -1


NOT_FOUND = FoundOffset(-1)


MOST_DECOMPRESSED = 512 << 20
"""Bytes that batches may decompress to for one request; what is asked for beyond is refused."""


class Searcher:
    """Looks into record batches for one request: off the event loop where they may be large, and only so far."""

    def __init__(self, decompression: Decompression, beside: ReadBudget | None = None) -> None:
        """Nothing has been decompressed.

        Args:
            decompression: where large batches are.
            beside: what those of native topics are counted in while they are looked into; None: one of its own.
        """
        self._decompression = decompression
        self.beside = beside or ReadBudget()
        self._left = MOST_DECOMPRESSED

    async def first_at(self, stored: StoredBatch, timestamp: int | None, first_offset: int) -> tuple[int, int] | None:
        """Offset and time (ms) of a record from `first_offset` on; None: there is none.

        The first one that is not before `timestamp`; where that is None, the first of those with the largest time.

        Raises:
            MessageTooLarge: too much has been decompressed for this request, or this batch alone is too large.
            CorruptBatch: its records cannot be read.
        """
        look = partial(search, stored.batch, stored.base_offset, first_offset, timestamp)
        size = len(stored.batch)
        try:
            if peek(stored.batch).codec == NONE:
                found, _ = look() if size <= HERE else await self._decompression.usual(look)
                return found
            if size <= HERE:
                with contextlib.suppress(BatchTooLarge):
                    return look(limit=HERE)[0]
            return await self._search(look)
        except BatchError as error:
            raise CorruptBatch(f"the records of a batch cannot be read: {error}") from None

    async def _search(self, look: Callable[..., tuple[tuple[int, int] | None, int]]) -> tuple[int, int] | None:
        for limit, run in ((USUAL, self._decompression.usual), (MOST, self._decompression.large)):
            most = min(limit, self._left)
            try:
                found, decompressed = await run(partial(look, limit=most))
            except BatchTooLarge:
                self._left -= most
                continue
            self._left -= decompressed
            return found
        raise MessageTooLarge(
            f"batches take more than {MOST_DECOMPRESSED} bytes decompressed, or one of them more than {MOST}"
        )


async def find(
    storage: LogLookup, partition: Source, timestamp: int, searcher: Searcher, cold: "ColdPartition | None" = None
) -> FoundOffset:
    """Look an offset up by time.

    Args:
        storage: where the log is.
        partition: the partition.
        timestamp: milliseconds since the epoch, or a `Special`.
        searcher: looks into the batches.
        cold: what is not in the log any more and can be read all the same.

    Returns:
        The first record with this timestamp or a later one. For `EARLIEST` and `LATEST` no timestamp is given. As in
        Kafka, nothing is found by time that cannot be read yet.

    Raises:
        NotLeader: it lies where the log may end, and where that is is not known yet;
        StorageUnavailable, ArchiveUnavailable; MessageTooLarge, CorruptBatch: a batch cannot be looked into.
    """
    if timestamp == Special.LATEST:
        await partition.ask_end()
        return FoundOffset(partition.log_end)
    if timestamp == Special.EARLIEST:
        return FoundOffset(partition.log_start)
    if timestamp == Special.EARLIEST_LOCAL:
        return FoundOffset(partition.local_start)
    found = await _by_time(storage, partition, timestamp, searcher, cold)
    if 0 <= found.offset < partition.log_end:
        return found
    await partition.ask_end()
    return NOT_FOUND


async def _by_time(
    storage: LogLookup, partition: Source, timestamp: int, searcher: Searcher, cold: "ColdPartition | None"
) -> FoundOffset:
    if cold is None or partition.log_start == partition.local_start:
        return await _in_log(storage, partition, timestamp, searcher)
    if timestamp != Special.MAX_TIMESTAMP:
        old = await cold.first_at(timestamp, partition.local_start)
        return FoundOffset(*old) if old is not None else await _in_log(storage, partition, timestamp, searcher)
    old, found = await cold.latest(partition.local_start), await _in_log(storage, partition, timestamp, searcher)
    return FoundOffset(*old) if old is not None and old[1] >= found.timestamp else found


async def _in_log(storage: LogLookup, partition: Source, timestamp: int, searcher: Searcher) -> FoundOffset:
    """The same among the records in the log."""
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
    """The first readable record with `timestamp` or a later one, from the batch that holds the log start on."""
    following: list[StoredBatch] = [stored]
    while following:
        stored = following[0]
        found = await searcher.first_at(stored, timestamp, partition.local_start)
        if found is not None:
            return FoundOffset(*found)
        following = await storage.read(partition.stream, stored.next_offset, 1)
    return NOT_FOUND
