"""The bytes of recent record batches, bounded over all partitions, and what their headers say of consecutive ones.

A consumer at the tail is answered from here and never touches Redis. The batches of a partition lie in offset
order without a gap and end at its log end. When the budget is used up the oldest batch of the whole server goes.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from struct import Struct

from headrace.records.batch import ATTRIBUTES_AT
from headrace.topics.model import StoredBatch

Buffer = bytes | bytearray | memoryview

ENTRY_OVERHEAD = 256
"""Bytes charged for each batch beside its own: list slots and Python objects."""

LEAST_BYTES, MOST_BYTES = 128 << 20, 1 << 30
BESIDE_FILE_BYTES = 32 << 20
"""Where what is dropped can be read from the page cache, which has it a second time anyway."""
MOST_HELD = 256 << 20
_MEMORY_SHARE = 16
_COMPACT_AFTER = 512
_MOST_BATCHES = 8_192
"""Batches of one read: going over more of them would hold up others."""
_COUNT_AT = 57
_COUNT = Struct(">i")
_SPAN = Struct(">q15xi")
"""Base offset and last offset delta, at the beginning of a batch."""


def default_bytes(memory: int) -> int:
    """How much to cache on a machine with so many bytes of memory, where nobody says otherwise."""
    return min(max(memory // _MEMORY_SHARE, LEAST_BYTES), MOST_BYTES)


class CacheBudget:
    """Bytes that all tails together may hold."""

    def __init__(self, limit: int, most_held: int = MOST_HELD) -> None:
        """Nothing is held yet.

        Args:
            limit: bytes; negative where nobody knows the machine: the least default.
            most_held: bytes of batches that wait for replicas, beside them: nobody can read those, so none can go.
        """
        self.most_held = most_held
        self.held = 0
        self.limit = limit if limit >= 0 else LEAST_BYTES
        self.used = 0
        self.order: deque[Tail] = deque()
        """The tail of each batch that was charged, oldest first."""
        self._empty = 0  # places in it of batches that were cleared since

    def shrink(self) -> None:
        """Drop the server's oldest batches while over the limit."""
        while self.used > self.limit and self.order:
            # A tail that was cleared has fewer batches than places in the queue: those places are empty.
            freed = self.order.popleft().drop_oldest()
            if freed:
                self.used -= freed + ENTRY_OVERHEAD
            else:
                self._empty -= 1

    def release(self, size: int, batches: int) -> None:
        """Give back what a cleared tail held."""
        self.used -= size + batches * ENTRY_OVERHEAD
        self._empty += batches
        if self._empty >= _COMPACT_AFTER and self._empty * 2 >= len(self.order):
            # Where topics come and go the budget may never be used up, and nothing else takes these places away.
            self.order = deque(tail for tail in self.order if not tail.drop_empty())
            self._empty = 0


class Tail:
    """The cached end of one partition's log."""

    __slots__ = ("_batches", "_budget", "_ends", "_head", "_stale", "size", "start")

    def __init__(self, budget: CacheBudget, log_end: int) -> None:
        self._budget = budget
        self._ends: list[int] = []  # the next offset after each batch: sorted, so it can be searched
        self._batches: list[Buffer | None] = []
        self._head = 0  # places before it are already dropped
        self._stale = 0  # places in the budget's queue that belong to batches cleared since
        self.start = log_end
        self.size = 0

    def append(self, next_offset: int, batch: Buffer) -> None:
        """Add the batch that ends before `next_offset`; it must begin where the last one ended."""
        self._ends.append(next_offset)
        self._batches.append(batch)
        size = len(batch)
        self.size += size
        budget = self._budget
        budget.order.append(self)
        budget.used += size + ENTRY_OVERHEAD
        if budget.used > budget.limit:
            budget.shrink()

    def drop_oldest(self) -> int:
        """Forget the first batch; the bytes it had, or 0 when that place was cleared before."""
        if self._stale:
            self._stale -= 1
            return 0
        head = self._head
        batches, ends = self._batches, self._ends
        batch = batches[head]
        assert batch is not None  # places from the head on are filled
        batches[head] = None
        self.start = ends[head]
        head += 1
        if head >= _COMPACT_AFTER and head * 2 >= len(ends):
            del ends[:head], batches[:head]
            head = 0
        self._head = head
        freed = len(batch)
        self.size -= freed
        return freed

    def drop_empty(self) -> bool:
        """Whether the tail's first place in the budget's queue was cleared before; it is forgotten then."""
        if not self._stale:
            return False
        self._stale -= 1
        return True

    def clear(self, log_end: int) -> None:
        """Forget everything; the next batch begins at `log_end`."""
        count = len(self._ends) - self._head
        self._stale += count
        self._budget.release(self.size, count)
        self._ends.clear()
        self._batches.clear()
        self._head = 0
        self.size = 0
        self.start = log_end

    def read(self, offset: int, limit: int, end: int | None = None, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Whole batches from the one holding `offset` on, as many as fit in `limit` bytes, and their size.

        Args:
            offset: at least `start`.
            limit: bytes.
            end: batches that end at or before this offset; None: all.
            whole_first: the first batch is returned even when it is larger than `limit` (KIP-74).
        """
        ends = self._ends
        first = bisect_right(ends, offset, self._head)
        until = len(ends) if end is None or not ends or ends[-1] <= end else bisect_right(ends, end, first)
        chunks: list[Buffer] = []
        total = 0
        for index in range(first, min(until, first + _MOST_BATCHES)):
            batch = self._batches[index]
            assert batch is not None  # places from the head on are filled
            size = len(batch)
            if total + size > limit and (chunks or not whole_first):
                break
            chunks.append(batch)
            total += size
        return chunks, total


def first_readable(cold_start: int | None, local_start: int) -> int:
    """Where a log begins for readers.

    Args:
        cold_start: where its archive begins; None: it is read from none.
        local_start: where it begins in Redis.
    """
    return local_start if cold_start is None else min(cold_start, local_start)


def count_records(batches: list[Buffer], *, has_gaps: bool) -> int:
    """How many records are in consecutive batches, by what their headers say.

    Where offsets have no gaps the first and the last header tell it: there may be thousands in between.
    """
    if has_gaps:
        return sum(_COUNT.unpack_from(batch, _COUNT_AT)[0] for batch in batches)
    return next_offset(batches) - int(_SPAN.unpack_from(batches[0])[0])


def next_offset(batches: list[Buffer]) -> int:
    """The offset behind consecutive batches, of which the last is by itself."""
    base_offset, last_delta = _SPAN.unpack_from(batches[-1])
    return int(base_offset + last_delta + 1)


def codecs(batches: list[Buffer]) -> Iterator[int]:
    """The compression of each batch, by its number."""
    return (batch[ATTRIBUTES_AT + 1] & 7 for batch in batches)


def fitting(stored: list[StoredBatch], limit: int) -> tuple[list[Buffer], int]:
    """Return the first batch and its successors that fit into `limit` bytes without a gap, and their size.

    Retention between two reads leaves a gap. A reader that skipped it would not notice the missing records.
    """
    chunks: list[Buffer] = []
    total, following = 0, -1
    for found in stored:
        size = len(found.batch)
        if chunks and (total + size > limit or found.base_offset > following):
            break
        chunks.append(found.batch)
        total += size
        following = found.next_offset
    return chunks, total


def take(batches: "list[StoredBatch] | deque[StoredBatch]", limit: int) -> tuple[list[Buffer], int]:
    """Return batches of up to `limit` bytes, the first one in any case, and their size in bytes."""
    chunks: list[Buffer] = []
    size = 0
    for each in batches:
        if chunks and size + len(each.batch) > limit:
            break
        chunks.append(each.batch)
        size += len(each.batch)
    return chunks, size
