"""One pass of the log cleaner over a log: keep the last record of each key.

The pass reads what was appended since the last one, and notes the keys. It then cleans the segments of earlier passes,
and moves what is left of the new batches to segments, a piece at a time. Redis has each step or does not, so a pass may
end anywhere.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.cache import producers_of
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.read import aborted_transactions
from headrace.broker.partition.source import COMMITTED
from headrace.records import cleaning
from headrace.records.accelerator import OffsetMap
from headrace.records.batch import HEADER_SIZE, BatchHeader, read_header
from headrace.topics.committed_batches import HiddenBatches, is_transactional
from headrace.topics.config import CompactionConfig
from headrace.topics.errors import TopicError
from headrace.topics.model import StoredBatch
from headrace.topics.segments import CleanedBatch, CleanedSegment

R = TypeVar("R")

PIECE_BYTES: Final = 1 << 20
"""Bytes that are read and written at once."""
SEGMENT_BYTES: Final = 32 << 20
"""Bytes from which another segment begins. One segment more is in memory while it is replaced."""
MERGED_BYTES: Final = 64 << 10
"""Bytes up to which small batches are merged. A reader of one record gets all of them."""
_MOST_BATCHES: Final = 1_024


class Ended(Exception):  # it is no error
    """The pass must end: the log is not to be cleaned any more."""


class Work(Protocol):
    """How a pass uses the machine."""

    async def run(self, work: Callable[[], R]) -> R:
        """Run it in the thread of the cleaner."""

    async def spent(self, size: int) -> None:
        """Wait, after so many bytes were read or written."""


class Report(msgspec.Struct):
    """What a pass has done."""

    end: int = 0
    """Offset up to which the log is cleaned."""
    bytes_read: int = 0
    bytes_kept: int = 0
    records_read: int = 0
    records_kept: int = 0
    unreadable: int = 0
    """Batches that cannot be read, and stay."""
    is_partial: bool = False
    """Whether the offset map was full before the end."""
    due_ms: int | None = None
    """Time from which tombstones or markers may be removed."""


class Compaction:
    """One pass over one log that this server leads."""

    def __init__(
        self,
        partition: LeaderPartition,
        storage: LogStorage,
        config: CompactionConfig,
        now_ms: int,
        map_bytes: int,
        work: Work,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Prepare a pass as of `now_ms`. `map_bytes` limits the offset map. It ends when it `is_wanted` no more."""
        self._partition = partition
        self._stream = partition.stream
        self._storage = storage
        self._segments = storage.segments
        self._config = config
        self._now_ms = now_ms
        self._map_bytes = map_bytes
        self._work = work
        self._is_wanted = is_wanted
        self._epoch = partition.leader_epoch
        self._with_data: set[int] = set()
        """Producers of transactions with data before the present batch."""
        self.report = Report()

    async def run(self) -> None:
        """Clean the log.

        Raises:
            Ended, OffsetOutOfRange: the log, its topic or its leader has changed. What was done is complete.
            StorageUnavailable, StorageFull, Fenced, UnknownTopic: likewise.
        """
        partition = self._partition
        self._check()
        await self._segments.close(self._stream)
        # The last batch stays, so that a reader at any offset before the log end finds one. What arrives from here on
        # may be above the offset of the snapshot, which is the limit.
        bound = min(partition.visible_end(COMMITTED), partition.log_end - 1)
        await partition.save_producers()
        await self._storage.settle(self._stream)
        start = max(self._segments.cleaned(self._stream).end, partition.local_start)
        records = max(0, bound - start)
        offset_map = await self._work.run(lambda: cleaning.open_offset_map(records, self._map_bytes, os.urandom(16)))
        end = await self._add(offset_map, start, bound)
        if end > start and (raising := self._storage.allow_transactions()) is not None:
            # An older server does not know segments either.
            await raising
        try:
            for group in self._groups():
                await self._rewrite(group, offset_map)
            await self._advance(offset_map, start, end)
        except BaseException:
            await self._give_up()
            raise
        self.report.end = self._segments.cleaned(self._stream).end

    def _check(self) -> None:
        partition = self._partition
        if not (self._is_wanted() and partition.is_writable and partition.leader_epoch == self._epoch):
            raise Ended
        if partition.transactions is None:
            raise Ended  # aborted records are not known

    async def _give_up(self) -> None:
        if self._partition.is_writable:
            # Otherwise the next pass does.
            with contextlib.suppress(TopicError):
                await self._segments.close(self._stream)

    # Reading

    async def _read_dirty(self, offset: int, end: int, count: int) -> list[StoredBatch]:
        """Return batches of the stream that may be cleaned: those before `end` that are old enough."""
        self._check()
        found = await self._storage.read(self._stream, offset, count, end)
        await self._work.spent(sum(len(each.batch) for each in found))
        lag_ms = self._config.min_compaction_lag_ms
        for index, each in enumerate(found):
            if lag_ms and _header(each).max_timestamp > self._now_ms - lag_ms:
                return found[:index]
        return found

    async def _add(self, offset_map: OffsetMap, start: int, end: int) -> int:
        """Note the keys from `start` to `end`. Return the offset up to which that was possible."""
        offset, count = start, 1
        while offset < end and (found := await self._read_dirty(offset, end, count)):
            batches, aborted = _bytes(found), await self._aborted(found)
            added = await self._work.run(partial(cleaning.add_batches, offset_map, batches, aborted))
            if added.stopped_at is not None:
                self.report.is_partial = True
                return added.stopped_at
            offset, count = found[-1].next_offset, _count(found)
        return offset

    async def _aborted(self, found: Sequence[StoredBatch]) -> list[int]:
        """Return the indexes of batches of aborted transactions. All transactions before the bound are decided."""
        if not any(is_transactional(each.batch) for each in found):
            return []
        partition = self._partition
        # There may be 100,000 of other producers.
        producers = partial(producers_of, [each.batch for each in found])
        aborted = await aborted_transactions(partition, found[0].base_offset, found[-1].next_offset, producers)
        if partition.transactions is None:
            raise Ended  # aborted records are not known any more
        hidden = HiddenBatches(aborted)
        return [index for index, each in enumerate(found) if hidden.is_aborted(each.batch)]

    # Writing

    async def _clean(
        self, offset_map: OffsetMap, found: Sequence[StoredBatch], newest: int, otherwise: int, *, clean: bool
    ) -> tuple[list[CleanedBatch], bool]:
        """Return what is left of batches, and whether that is less.

        `newest` is the largest time so far, and `otherwise` counts for a batch without timestamps. `clean`: an earlier
        pass wrote them.
        """
        batches = _bytes(found)
        aborted = [] if clean else await self._aborted(found)
        done = await self._work.run(
            lambda: cleaning.clean(
                batches,
                offset_map,
                aborted=aborted,
                producers_with_data=self._with_data,
                now_ms=self._now_ms,
                delete_retention_ms=self._config.delete_retention_ms,
                clean_segment=clean,
                merged_bytes=MERGED_BYTES,
            )
        )
        report = self.report
        report.bytes_read += done.bytes_read
        report.bytes_kept += done.bytes_kept
        report.records_read += done.records_read
        report.records_kept += done.records_kept
        report.unreadable += done.unreadable
        if done.earliest_horizon_ms is not None:
            due = done.earliest_horizon_ms
            report.due_ms = due if report.due_ms is None else min(due, report.due_ms)
        # A marker of an aborted transaction ends it for readers, also for those that have its records in memory.
        needed = set(done.removed_aborts)
        left: list[CleanedBatch] = []
        changed = False
        for each, batch, remaining in zip(found, batches, done.batches, strict=True):
            kept = batch if remaining is None and each.base_offset in needed else remaining
            changed = changed or kept is not batch
            if kept is not None:
                header = read_header(kept[:HEADER_SIZE])
                time = header.max_timestamp
                newest = max(newest, time if time >= 0 else otherwise)
                # It may have been merged with later ones. A batch that cannot be read has any offsets.
                following = each.next_offset if kept is batch else header.base_offset + header.span
                left.append(CleanedBatch(following, kept, newest))
        return left, changed

    def _groups(self) -> list[list[CleanedSegment]]:
        """Return neighboring segments that fit in one."""
        groups: list[list[CleanedSegment]] = []
        size = 0
        for each in self._segments.cleaned(self._stream).segments:
            if groups and size + each.size <= SEGMENT_BYTES:
                groups[-1].append(each)
                size += each.size
            else:
                groups.append([each])
                size = each.size
        return groups

    async def _rewrite(self, group: list[CleanedSegment], offset_map: OffsetMap) -> None:
        """Clean segments of earlier passes, and write one for all, unless nothing changes."""
        number: int | None = None
        earlier = [each for each in self._segments.cleaned(self._stream).segments if each.end <= group[0].first]
        newest = earlier[-1].newest if earlier else -1
        waiting: list[CleanedBatch] = []
        size, is_changed = 0, len(group) > 1
        for segment in group:
            offset, count = segment.first, 8
            while True:
                self._check()
                found = await self._segments.read(self._stream, segment.number, offset, count)
                if not found:
                    break
                left, changed = await self._clean(offset_map, found, newest, segment.newest, clean=True)
                await self._work.spent(sum(len(each.batch) for each in found))
                is_changed = is_changed or changed
                waiting += left
                newest = left[-1].newest if left else newest
                size += sum(len(each.batch) for each in left)
                if is_changed and size >= PIECE_BYTES:
                    number, waiting, size = await self._write(number, waiting), [], 0
                offset, count = found[-1].next_offset, _count(found)
        if not is_changed:
            return
        if waiting:
            number = await self._write(number, waiting)
        self._check()
        await self._segments.swap(self._stream, [each.number for each in group], number)

    async def _write(self, number: int | None, batches: list[CleanedBatch]) -> int:
        if number is None:
            number = self._segments.cleaned(self._stream).next_number
        first = 0
        while first < len(batches):
            last, size = first, 0
            while last < len(batches) and (last == first or size < PIECE_BYTES):
                size += len(batches[last].batch)
                last += 1
            self._check()
            await self._segments.write(self._stream, number, batches[first:last])
            await self._work.spent(size)
            first = last
        return number

    async def _advance(self, offset_map: OffsetMap, start: int, end: int) -> None:
        """Move what is left of the stream's batches to segments."""
        offset, count = start, 1
        while offset < end and (found := await self._read_dirty(offset, end, count)):
            known = self._segments.cleaned(self._stream)
            left, _ = await self._clean(offset_map, found, known.newest, self._now_ms, clean=False)
            last = known.segments[-1] if known.segments else None
            number = known.next_number if last is None or last.size >= SEGMENT_BYTES else last.number
            following = found[-1].next_offset
            self._check()
            await self._segments.advance(self._stream, number, offset, following, left)
            await self._work.spent(sum(len(each.batch) for each in left))
            offset, count = following, _count(found)


def _header(stored: StoredBatch) -> BatchHeader:
    return read_header(memoryview(stored.batch)[:HEADER_SIZE])


def _bytes(found: Sequence[StoredBatch]) -> list[bytes]:
    return [each.batch if isinstance(each.batch, bytes) else bytes(each.batch) for each in found]


def _count(found: Sequence[StoredBatch]) -> int:
    """Return how many batches like these fill a piece."""
    size = sum(len(each.batch) for each in found)
    return max(1, min(PIECE_BYTES * len(found) // max(1, size), 4 * len(found), _MOST_BATCHES))
