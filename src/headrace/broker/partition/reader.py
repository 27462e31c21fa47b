"""Where the batches of one log come from for readers: the newest from memory, others from Redis or from the archive."""

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol

from headrace.broker.partition.cache import Buffer, CacheBudget, Tail, first_readable, fitting
from headrace.broker.partition.remote import RemotePartition
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Watcher, Watchers
from headrace.broker.ports import LogStorage
from headrace.broker.runtime.budget import ReadAheadBudget, ReadBudget, bytes_of
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.topics.model import StoredBatch

# Reads on while a consumer is busy with its last answer.
ANSWER_TURNS = 4
"""Turns of the loop until an answer has left: a read that is a copy from the page cache would hold it up."""


class Read(Protocol):
    """See `ReadableLog.read_range`."""

    def __call__(self, offset: int, limit: int, *, join: bool) -> Coroutine[Any, Any, list[StoredBatch]]:
        """About `limit` bytes of batches from an offset on."""


class _Reading(NamedTuple):
    last: StoredBatch
    """Of the read before; without its bytes where batches may come as one."""
    following: asyncio.Future[list[StoredBatch]]
    place: ReadAheadBudget


class ReadAhead:
    """What comes behind the last read of one log."""

    __slots__ = ("_ahead", "_reads")

    def __init__(self, reads: ReadBudget) -> None:
        """Nothing has been read yet; `reads` bounds what all logs read ahead."""
        self._reads = reads
        self._ahead: _Reading | None = None

    def ready(self, offset: int) -> list[StoredBatch] | None:
        """What was read ahead and is here by now, the batch that begins at an offset first; None: nothing."""
        ahead = self._ahead
        if ahead is None or offset != ahead.last.next_offset or not ahead.following.done():
            return None
        if ahead.following.cancelled() or ahead.following.exception() is not None:
            return None
        found = ahead.following.result()
        # Where retention came between, the archive may have what is missing.
        return found if found and found[0].base_offset <= offset else None

    async def take(self, offset: int, limit: int, *, join: bool) -> list[StoredBatch] | None:
        """Batches from `offset` on that the last read left over, or was followed by; None: it did not end there.

        It may have ended in the middle of its last batch, where somebody takes records and not batches.

        Args:
            offset: the first that is wanted.
            limit: bytes that are wanted.
            join: whether several batches may come as one; see `fit_to`.
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
        """A read has ended with a batch; `left`: what it found behind that one. `read` on, if the budget allows it."""
        self.forget()
        place = self._reads.read_ahead(limit, self.forget)
        if place is None:
            return
        if join:
            # Its view would hold all that came with it, which nobody counts once the answer has left.
            last = StoredBatch(last.base_offset, last.next_offset, b"")
        reading = asyncio.ensure_future(_read_on(read, left, last.next_offset, place.size, join))
        # Nobody may ever come for it: an error is then nobody's.
        reading.add_done_callback(lambda done: place.came(bytes_of(done)))
        self._ahead = _Reading(last, reading, place)

    def forget(self) -> None:
        """What was read ahead is asked for, or not wanted any more."""
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
    """The same batches, each by itself unless they may `join` and fit into `limit` bytes together.

    So whoever takes as many as fit ends with one that is by itself. What lies behind these is left as it is: there may
    be thousands, of which a client that wants one after the other would have all taken apart each time.
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
    """Each batch by itself, as many as begin within `limit` bytes; the others as one behind them."""
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
    """Those of the same batches that end at or before an offset; the last is by itself if any had to be left out."""
    if not found or found[-1].next_offset <= end:
        return found
    kept = [each for each in found if each.base_offset < end]
    if not kept:
        return []
    last = kept.pop()
    return kept + [each for each in _apart(last, len(last.batch)) if each.next_offset <= end]


# Where the bytes of a log are, so how far to read for a given number of them: sparse, like Kafka's offset index. What
# lies before its first place is found by trying.
GRAIN = 64 << 10
"""Bytes of log between two places."""
_MOST_PLACES = 1 << 16


class LogIndex:
    """Offsets and the byte positions at which their batches begin, counted from where the index begins."""

    __slots__ = ("_due", "_grain", "_offsets", "_position", "_positions")

    def __init__(self, log_end: int) -> None:
        self.clear(log_end)

    def clear(self, log_end: int) -> None:
        """Forget everything; the index begins at `log_end`."""
        self._offsets = array("q", [log_end])
        self._positions = array("q", [0])
        self._position = 0
        self._grain = GRAIN
        self._due = GRAIN  # the position from which on a place is noted

    def append(self, base_offset: int, size: int) -> None:
        """Note a batch of `size` bytes at the end of the log."""
        position = self._position
        if position >= self._due:
            self._offsets.append(base_offset)
            self._positions.append(position)
            if len(self._offsets) > _MOST_PLACES:
                self._thin_out()
            self._due = self._positions[-1] + self._grain
        self._position = position + size

    def _thin_out(self) -> None:
        """Half as many places, twice as far apart."""
        del self._offsets[1::2], self._positions[1::2]
        self._grain *= 2

    def covers(self, offset: int) -> bool:
        """Whether `offset` lies behind the index's beginning."""
        return offset >= self._offsets[0]

    def end_of(self, offset: int, limit: int) -> int | None:
        """Offset up to which about `limit` bytes lie from `offset` on; None: so much is not left.

        Args:
            offset: must be covered.
            limit: bytes. The answer is at most one place, or one batch, further than this.
        """
        place = bisect_right(self._offsets, offset) - 1
        behind = bisect_right(self._positions, self._positions[place] + limit)
        return self._offsets[behind] if behind < len(self._offsets) else None


class ColdReads:
    """How many batches to ask for where no index tells their size: few at first, more as they prove small."""

    __slots__ = ("count",)

    MOST = 64
    """Bounds what one read may bring when small batches are followed by large ones."""

    def __init__(self) -> None:
        self.count = 1

    def learn(self, asked: int, batches: int, size: int, limit: int, *, full: bool = False) -> None:
        """A read that asked for `asked` batches brought `batches`, of `size` bytes together.

        `full`: there were more; where these are fewer than asked for, they are as many as `limit` bytes hold.
        """
        if size > limit:
            self.count = max(1, limit * batches // size)
        elif batches == asked:
            self.count = min(self.MOST, 2 * asked)
        elif full:
            self.count = batches


_MOST_BATCHES = 4096


class ReadableLog:
    """A log as its readers see it: where it begins and ends, its newest batches in memory, and the reads of all others.

    The leader adds each batch to `_tail` and `_index`, and moves `log_end`.
    """

    has_gaps = entry_per_record = False

    def __init__(self, stream: str, storage: LogStorage, budget: CacheBudget, reads: ReadBudget | None) -> None:
        """Nothing is known yet.

        Args:
            stream: the Redis key of its stream.
            storage: where it is.
            budget: of all cached tails together.
            reads: budget of what is read ahead; None: one of its own.
        """
        self.stream = stream
        self.local_start = 0
        """First offset that lies in Redis."""
        self.cold: RemotePartition | None = None
        """What the archive has of it, where it is read from there."""
        self.log_end = 0
        """The high watermark; of another broker's log, as far as it was known here."""
        self._storage = storage
        self._tail = Tail(budget, 0)
        """The newest batches."""
        self._index = LogIndex(0)
        """Where the bytes of those are that came since it was cleared."""
        self._watchers = Watchers()
        self._cold_reads = ColdReads()
        self._reads = reads or ReadBudget()
        self._ahead = ReadAhead(self._reads)

    @property
    def log_start(self) -> int:
        """First offset that may be read: where the archive begins, if what is before the log is read from there."""
        return first_readable(None if self.cold is None else self.cold.start, self.local_start)

    def visible_end(self, isolation: Isolation) -> int:
        """The high watermark: every batch is stable as soon as it is stored."""
        return self.log_end

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Whether a read at `offset` would find nothing."""
        return offset >= self.visible_end(isolation)

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every batch from now on."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling; harmless when it was not watching."""
        self._watchers.discard(watcher)

    async def size(self) -> int:
        """Bytes that its record batches take in Redis."""
        return await self._storage.size(self.stream)

    def _trimmed(self, log_start: int) -> None:
        self.local_start = max(self.local_start, log_start)

    def _clear(self, log_end: int) -> None:
        """Forget what is in memory; the next batch begins at `log_end`."""
        self._tail.clear(log_end)
        self._index.clear(log_end)
        self._ahead.forget()
        # A read that is under way is of the log as it was before: what it brings is not kept.
        self._ahead = ReadAhead(self._reads)

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether a read can be answered from memory; see `Readable.cached`."""
        if offset >= self._tail.start:
            return True
        return ahead and offset >= self.local_start and self._ahead.ready(offset) is not None

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Whole batches of a `cached` offset, and their size; see `Tail.read`."""
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
        """Batches from Redis, the one holding `offset` first, at least one if there is one, and their size.

        What is not in Redis any more comes from the archive; where retention comes between, also behind `local_start`.
        """
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

    def _answer(
        self, stored: list[StoredBatch], limit: int, join: bool, ahead: ReadAhead, isolation: Isolation
    ) -> tuple[list[Buffer], int]:
        """As many as fit, and their size; what follows is read ahead, unless the log was cleared in between."""
        end = self.visible_end(isolation)
        stored = up_to(stored, end)
        chunks, total = fitting(stored, limit)
        taken = len(chunks)
        if taken and ahead is self._ahead:
            last = stored[taken - 1]
            if taken < len(stored) or last.next_offset < min(self._tail.start, end):
                ahead.keep(partial(self.read_range, isolation=isolation), last, stored[taken:], limit, join=join)
        return chunks, total

    async def _following(self, offset: int, limit: int, join: bool, isolation: Isolation) -> list[StoredBatch]:
        """Batches from `offset` on, those that were read ahead first."""
        found = await self._ahead.take(offset, limit, join=join)
        return await self.read_range(offset, limit, join=join, isolation=isolation) if found is None else found

    async def read_range(
        self, offset: int, limit: int, *, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> list[StoredBatch]:
        """About `limit` bytes of batches from Redis; no more where several may come as one.

        None from the visible end on: Redis has those past the high watermark, and its replicas have not.
        """
        joined, visible = limit if join else None, self.visible_end(isolation)
        if self._index.covers(offset):
            end = self._index.end_of(offset, limit)
            end = visible if end is None else min(end, visible)
            stored = await self._storage.read(self.stream, offset, _MOST_BATCHES, end, joined)
        else:
            asked = self._cold_reads.count
            stored = await self._storage.read(self.stream, offset, asked, visible, joined)
            size = sum(len(found.batch) for found in stored)
            # Those that come as one are never too many: there were more where the log goes on.
            full = join and bool(stored) and stored[-1].next_offset < visible
            self._cold_reads.learn(asked, sum(found.count for found in stored), size, limit, full=full)
        return stored
