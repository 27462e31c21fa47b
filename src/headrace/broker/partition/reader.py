"""Read the batches of one log from memory, Redis or the archive."""

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.cache import Buffer, CacheBudget, Tail, first_readable, fitting
from headrace.broker.partition.remote_log import RemotePartition
from headrace.broker.partition.source import UNCOMMITTED, Isolation, StableWatchers, Watcher, Watchers
from headrace.broker.runtime.budget import ReadAheadBudget, ReadBudget, bytes_of
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.topics.errors import NotLeader
from headrace.topics.model import StoredBatch
from headrace.topics.segments import CleanedSegment
from headrace.topics.transactions import AbortedTransaction, Producers, Transactions

ANSWER_TURNS = 4
"""Event loop turns before read-ahead starts, so that it does not delay the response."""


class Read(Protocol):
    """The signature of `ReadableLog.read_range`."""

    def __call__(self, offset: int, limit: int, *, join: bool) -> Coroutine[Any, Any, list[StoredBatch]]:
        """Return about `limit` bytes of batches from `offset`."""


class _Reading(NamedTuple):
    last: StoredBatch
    """Last batch of the previous read; without its bytes if batches may be joined."""
    following: asyncio.Future[list[StoredBatch]]
    place: ReadAheadBudget


class ReadAhead:
    """Batches that follow the last read of one log."""

    __slots__ = ("_ahead", "_reads")

    def __init__(self, reads: ReadBudget) -> None:
        """`reads` is the read-ahead budget of all logs."""
        self._reads = reads
        self._ahead: _Reading | None = None

    def ready(self, offset: int) -> list[StoredBatch] | None:
        """Return finished read-ahead that begins at `offset`, if any."""
        ahead = self._ahead
        if ahead is None or offset != ahead.last.next_offset or not ahead.following.done():
            return None
        if ahead.following.cancelled() or ahead.following.exception() is not None:
            return None
        found = ahead.following.result()
        # After retention, the archive may have the missing batches.
        return found if found and found[0].base_offset <= offset else None

    async def take(self, offset: int, limit: int, *, join: bool) -> list[StoredBatch] | None:
        """Return batches from `offset` that remained or followed the last read; None if it ended elsewhere.

        The offset may be within the last batch: some interfaces read single records. For `join`, see `fit_to`.
        """
        ahead = self._ahead
        if ahead is None:
            return None
        last = ahead.last
        if offset != last.next_offset and not (last.batch and last.base_offset <= offset < last.next_offset):
            return None
        self.forget()
        found = await ahead.following
        return fit_to(found if offset == last.next_offset else [last, *found], limit, join=join)

    def keep(self, read: Read, last: StoredBatch, left: list[StoredBatch], limit: int, *, join: bool) -> None:
        """Keep the unused batches `left` after `last`, and read ahead if the budget allows."""
        self.forget()
        place = self._reads.read_ahead(limit, self.forget)
        if place is None:
            return
        if join:
            # A view would keep the whole buffer, which no budget counts.
            last = StoredBatch(last.base_offset, last.next_offset, b"")
        reading = asyncio.ensure_future(_read_on(read, left, last.next_offset, place.size, join))
        # No read may collect the result, so an error must not be reported.
        reading.add_done_callback(lambda done: place.came(bytes_of(done)))
        self._ahead = _Reading(last, reading, place)

    def forget(self) -> None:
        """Drop the read-ahead."""
        if self._ahead is not None:
            place = self._ahead.place
            self._ahead = None
            place.drop()


async def _read_on(read: Read, left: list[StoredBatch], following: int, limit: int, join: bool) -> list[StoredBatch]:
    wanted = limit - sum(len(found.batch) for found in left)
    if wanted <= 0:
        return left
    for _ in range(ANSWER_TURNS):
        await asyncio.sleep(0)
    return left + await read(left[-1].next_offset if left else following, wanted, join=join)


def fit_to(found: list[StoredBatch], limit: int, *, join: bool) -> list[StoredBatch]:
    """Split batches, or `join` those that fit into `limit` bytes together.

    The last that fits is always separate. Later ones stay joined: splitting thousands for each read would be slow.
    """
    left, fits = limit, 0
    for each in found:
        left -= len(each.batch)
        if left < 0:
            break
        fits += 1
    if join and left >= 0:
        return found
    apart = [batch for each in found[:fits] for batch in _apart(each, limit)]
    if fits < len(found):
        apart += _apart(found[fits], left + len(found[fits].batch))
    return apart + found[fits + 1 :]


def _apart(joined: StoredBatch, limit: int) -> list[StoredBatch]:
    """Split the batches that begin within `limit` bytes."""
    if joined.count == 1:
        return [joined]
    batches: list[StoredBatch] = []
    view, at = memoryview(joined.batch), 0
    while at < len(view):
        if at > limit:
            rest = joined.count - len(batches)
            return [*batches, StoredBatch(batches[-1].next_offset, joined.next_offset, view[at:], rest)]
        header = read_header(view[at : at + HEADER_SIZE])
        batch = view[at : at + header.size]
        batches.append(StoredBatch(header.base_offset, header.base_offset + header.span, batch))
        at += header.size
    return batches


def up_to(found: list[StoredBatch], end: int) -> list[StoredBatch]:
    """Return the batches up to `end`. The last is separate if others were dropped."""
    if not found or found[-1].next_offset <= end:
        return found
    kept = [each for each in found if each.base_offset < end]
    if not kept:
        return []
    last = kept.pop()
    return kept + [each for each in _apart(last, len(last.batch)) if each.next_offset <= end]


# To know how far to read for a byte limit. Sparse, like Kafka's offset index.
GRAIN = 64 << 10
"""Bytes of log between two index entries."""
_MOST_PLACES = 1 << 16


class LogIndex:
    """Offsets and byte positions of batches, counted from the start of the index."""

    __slots__ = ("_due", "_grain", "_offsets", "_position", "_positions")

    def __init__(self, log_end: int) -> None:
        self.clear(log_end)

    def clear(self, log_end: int) -> None:
        """Drop all entries. The index begins at `log_end`."""
        self._offsets = array("q", [log_end])
        self._positions = array("q", [0])
        self._position = 0
        self._grain = GRAIN
        self._due = GRAIN  # the position of the next entry

    def append(self, base_offset: int, size: int) -> None:
        """Add a batch of `size` bytes at the end of the log."""
        position = self._position
        if position >= self._due:
            self._offsets.append(base_offset)
            self._positions.append(position)
            if len(self._offsets) > _MOST_PLACES:
                self._thin_out()
            self._due = self._positions[-1] + self._grain
        self._position = position + size

    def _thin_out(self) -> None:
        del self._offsets[1::2], self._positions[1::2]
        self._grain *= 2

    def covers(self, offset: int) -> bool:
        """Whether `offset` is at or after the start of the index."""
        return offset >= self._offsets[0]

    def end_of(self, offset: int, limit: int) -> int | None:
        """Return the offset about `limit` bytes after a covered offset; None if the log is shorter.

        It exceeds the limit by at most one index entry or batch.
        """
        place = bisect_right(self._offsets, offset) - 1
        behind = bisect_right(self._positions, self._positions[place] + limit)
        return self._offsets[behind] if behind < len(self._offsets) else None


class ColdReads:
    """Number of batches to request without an index: few at first, more if they are small."""

    __slots__ = ("count",)

    MOST = 64
    """Limits a read in which small batches precede large ones."""

    def __init__(self) -> None:
        self.count = 1

    def learn(self, asked: int, batches: int, size: int, limit: int, *, full: bool = False) -> None:
        """Learn from a read that requested `asked` batches and got `batches` of `size` bytes.

        `full`: more existed; fewer than requested then means that `limit` bytes hold no more.
        """
        if size > limit:
            self.count = max(1, limit * batches // size)
        elif batches == asked:
            self.count = min(self.MOST, 2 * asked)
        elif full:
            self.count = batches


_MOST_BATCHES = 4096


class ReadableLog:
    """A log for readers: its bounds, its cached tail, and reads from storage.

    The appender adds each batch to `_tail` and `_index`, and moves `log_end`.
    """

    has_gaps = entry_per_record = False

    def __init__(self, stream: str, storage: LogStorage, budget: CacheBudget, reads: ReadBudget | None) -> None:
        """`reads` is the budget for read-ahead; None: a separate one."""
        self.stream = stream
        self.local_start = 0
        """First offset in Redis."""
        self.cold: RemotePartition | None = None
        """The archived part of the log, if readable."""
        self.cleaned_end = 0
        """See `Readable.cleaned_end`: as of the last read from storage, as others have no gaps."""
        self.log_end = 0
        """The high watermark. For another broker's log, the last known one."""
        self._storage = storage
        self._tail = Tail(budget, 0)
        """The newest batches."""
        self._index = LogIndex(0)
        """Byte positions of the batches since the index was cleared."""
        self.transactions: Transactions | None = Transactions()
        """None: their index is being rebuilt, so nothing is known to be committed."""
        self._watchers = Watchers()
        self._stable_watchers = StableWatchers()
        """Watchers of readers of committed records, in a log with transactions."""
        self._cold_reads = ColdReads()
        self._reads = reads or ReadBudget()
        self._ahead = ReadAhead(self._reads)

    @property
    def log_start(self) -> int:
        """First readable offset, in the archive or in Redis."""
        return first_readable(None if self.cold is None else self.cold.start, self.local_start)

    def segment_at(self, offset: int) -> CleanedSegment | None:
        """Return the cleaned segment whose range has an offset; None: the stream, or the archive, has it."""
        cleaned = self._storage.segments.cleaned(self.stream)
        found = cleaned.from_offset(offset)
        return found[0] if found and offset < cleaned.end else None

    def visible_end(self, isolation: Isolation) -> int:
        """Return the high watermark, or the last stable offset for committed records."""
        transactions = self.transactions
        if isolation == UNCOMMITTED or (transactions is not None and not transactions.used):
            return self.log_end
        least = min(self.log_start, self.log_end)
        return least if transactions is None else max(transactions.stable_end(self.log_end), least)

    def check_stable(self) -> None:
        """See `Readable.check_stable`."""
        if self.transactions is None:
            raise NotLeader(f"{self.stream}: the index of its transactions is being rebuilt")

    @property
    def aborted_from(self) -> int:
        """See `Readable.aborted_from`."""
        return 0 if self.transactions is None else self.transactions.aborted.complete_from

    def aborted(self, offset: int, end: int, producers: Producers | None = None) -> list[AbortedTransaction]:
        """See `Readable.aborted`."""
        return [] if self.transactions is None else self.transactions.aborted.between(offset, end, producers)

    async def aborted_before(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """See `Readable.aborted_before`."""
        return await self._storage.aborted(self.stream, offset, before, end, producers)

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """See `Readable.at_end`."""
        return offset >= self.visible_end(isolation)

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """See `Readable.watch`."""
        (self._watchers if isolation == UNCOMMITTED else self._stable_watchers).add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """See `Readable.unwatch`."""
        self._watchers.discard(watcher)
        self._stable_watchers.discard(watcher)

    async def size(self) -> int:
        """Return the bytes of its batches in Redis."""
        return await self._storage.size(self.stream)

    def _trimmed(self, log_start: int) -> None:
        self.local_start = max(self.local_start, log_start)
        if self.transactions is not None:
            self.transactions.aborted.trim(self.local_start)

    def _clear(self, log_end: int) -> None:
        self._tail.clear(log_end)
        self._index.clear(log_end)
        self._ahead.forget()
        self._ahead = ReadAhead(self._reads)

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """See `Readable.cached`."""
        if offset >= self._tail.start:
            return True
        return ahead and offset >= self.local_start and self._ahead.ready(offset) is not None

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """See `Readable.read_cached`."""
        if offset >= self._tail.start:
            return self._tail.read(offset, limit, self.visible_end(isolation), whole_first=whole_first)
        found = fit_to(self._ahead.ready(offset) or [], limit, join=join)
        if not found or (len(found[0].batch) > limit and not whole_first):
            return [], 0
        self._ahead.forget()
        return self._answer(found, limit, join, self._ahead, isolation)

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """See `Readable.read_stored`. Batches that retention removed from Redis come from the archive."""
        ahead, cold = self._ahead, self.cold
        stored: list[StoredBatch] = []
        if cold is None or offset >= self.local_start:
            stored = await self._following(offset, limit, join, isolation)
        if cold is not None and (not stored or stored[0].base_offset > offset) and cold.has(offset, self.local_start):
            before = max(self.local_start, stored[0].base_offset if stored else 0)
            old = await cold.read(offset, min(before, self.visible_end(isolation)), limit)
            if old:
                return fitting(old, limit)
            stored = stored or await self._following(max(offset, self.local_start), limit, join, isolation)
        return self._answer(stored, limit, join, ahead, isolation)

    async def next_batch(self, offset: int) -> StoredBatch | None:
        """Return the batch of the first record from `offset` that is in memory or Redis; None: there is none."""
        offset, end = max(offset, self.local_start), self.visible_end(UNCOMMITTED)
        if offset >= self._tail.start:
            cached, _ = self._tail.read(offset, 1, end, whole_first=True)
            if not cached:
                return None
            header = read_header(memoryview(cached[0])[:HEADER_SIZE])
            return StoredBatch(header.base_offset, header.base_offset + header.span, bytes(cached[0]))
        stored = await self._storage.read(self.stream, offset, 1, end)
        return stored[0] if stored else None

    def _answer(
        self, stored: list[StoredBatch], limit: int, join: bool, ahead: ReadAhead, isolation: Isolation
    ) -> tuple[list[Buffer], int]:
        end = self.visible_end(isolation)
        stored = up_to(stored, end)
        chunks, total = fitting(stored, limit, self.cleaned_end)
        taken = len(chunks)
        if taken and ahead is self._ahead:
            last = stored[taken - 1]
            if taken < len(stored) or last.next_offset < min(self._tail.start, end):
                ahead.keep(partial(self.read_range, isolation=isolation), last, stored[taken:], limit, join=join)
        return chunks, total

    async def _following(self, offset: int, limit: int, join: bool, isolation: Isolation) -> list[StoredBatch]:
        found = await self._ahead.take(offset, limit, join=join)
        return await self.read_range(offset, limit, join=join, isolation=isolation) if found is None else found

    async def read_range(
        self, offset: int, limit: int, *, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> list[StoredBatch]:
        """Return about `limit` bytes of batches up to the visible end; at most `limit` if joined."""
        joined, visible = limit if join else None, self.visible_end(isolation)
        segments = self._storage.segments
        # The index has the bytes before a cleaning.
        if self._index.covers(offset) and offset >= segments.cleaned(self.stream).end:
            end = self._index.end_of(offset, limit)
            end = visible if end is None else min(end, visible)
            stored = await self._storage.read(self.stream, offset, _MOST_BATCHES, end, joined)
        else:
            asked = self._cold_reads.count
            stored = await self._storage.read(self.stream, offset, asked, visible, joined)
            size = sum(len(found.batch) for found in stored)
            # Joined batches never exceed the limit: the log continues after them.
            full = join and bool(stored) and stored[-1].next_offset < visible
            self._cold_reads.learn(asked, sum(found.count for found in stored), size, limit, full=full)
        self.cleaned_end = segments.cleaned(self.stream).end
        return stored
