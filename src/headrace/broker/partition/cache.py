"""Cache recent record batches of all partitions in one bounded budget.

Consumers at the tail read from it, not from Redis. A partition's batches are in offset order without gaps and end at
its log end. When the budget is full, the server drops its oldest batch.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from struct import Struct

from headrace.records.batch import ATTRIBUTES_AT, PRODUCER_AT
from headrace.topics.model import StoredBatch

Buffer = bytes | bytearray | memoryview

ENTRY_OVERHEAD = 256
"""Bytes charged for each batch in addition to its size: list slots and Python objects."""

LEAST_BYTES, MOST_BYTES = 128 << 20, 1 << 30
FILE_READER_CACHE_BYTES = 32 << 20
"""Default cache size for file storage, where the page cache holds the same bytes."""
MOST_HELD = 256 << 20
_MEMORY_SHARE = 16
_COMPACT_AFTER = 512
_MOST_BATCHES = 8_192
"""Maximum batches of one read, so that a read does not block the event loop."""
_COUNT_AT = 57
_COUNT = Struct(">i")
_LENGTH_AT, _LENGTH_END = 8, 12
_LENGTH, _PRODUCER = Struct(">i"), Struct(">q")
_SPAN = Struct(">q15xi")
"""Base offset and last offset delta at the start of a batch."""


def default_bytes(memory: int) -> int:
    """Return the default cache size for a machine with `memory` bytes."""
    return min(max(memory // _MEMORY_SHARE, LEAST_BYTES), MOST_BYTES)


class CacheBudget:
    """Bytes that the tails of all partitions may hold."""

    def __init__(self, limit: int, most_held: int = MOST_HELD) -> None:
        """A negative `limit`, for unknown memory, means the smallest default.

        `most_held` are additional bytes for batches that wait for replicas, because unreadable batches cannot be
        dropped.
        """
        self.most_held = most_held
        self.held = 0
        self.limit = limit if limit >= 0 else LEAST_BYTES
        self.used = 0
        self.order: deque[Tail] = deque()
        """The tail of each charged batch, oldest first."""
        self._empty = 0  # entries of `order` whose batches were cleared

    def shrink(self) -> None:
        """Drop the server's oldest batches until the budget is within its limit."""
        while self.used > self.limit and self.order:
            # A cleared tail leaves empty entries in the queue.
            freed = self.order.popleft().drop_oldest()
            if freed:
                self.used -= freed + ENTRY_OVERHEAD
            else:
                self._empty -= 1

    def release(self, size: int, batches: int) -> None:
        """Release the bytes of a cleared tail."""
        self.used -= size + batches * ENTRY_OVERHEAD
        self._empty += batches
        if self._empty >= _COMPACT_AFTER and self._empty * 2 >= len(self.order):
            # The budget may never fill up, so `shrink` alone would not suffice.
            self.order = deque(tail for tail in self.order if not tail.drop_empty())
            self._empty = 0


class Tail:
    """The cached end of one partition's log."""

    __slots__ = ("_batches", "_budget", "_ends", "_head", "_stale", "size", "start")

    def __init__(self, budget: CacheBudget, log_end: int) -> None:
        self._budget = budget
        self._ends: list[int] = []  # the next offset after each batch, sorted for binary search
        self._batches: list[Buffer | None] = []
        self._head = 0  # entries before it are dropped
        self._stale = 0  # entries in the budget's queue whose batches were cleared
        self.start = log_end
        self.size = 0

    def append(self, next_offset: int, batch: Buffer) -> None:
        """Add the batch that ends before `next_offset`. It must begin where the last one ended."""
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
        """Drop the first batch. Return its size, or 0 if its queue entry was cleared before."""
        if self._stale:
            self._stale -= 1
            return 0
        head = self._head
        batches, ends = self._batches, self._ends
        batch = batches[head]
        assert batch is not None  # entries from the head on are filled
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
        """Drop the first queue entry if it was cleared before. Return whether it was."""
        if not self._stale:
            return False
        self._stale -= 1
        return True

    def clear(self, log_end: int) -> None:
        """Drop all batches. The next batch begins at `log_end`."""
        count = len(self._ends) - self._head
        self._stale += count
        self._budget.release(self.size, count)
        self._ends.clear()
        self._batches.clear()
        self._head = 0
        self.size = 0
        self.start = log_end

    def read(self, offset: int, limit: int, end: int | None = None, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Return whole batches of up to `limit` bytes from the one with `offset`, and their size.

        Only batches that end at or before `end` count. `whole_first` returns the first even if it exceeds `limit`
        (KIP-74).
        """
        ends = self._ends
        first = bisect_right(ends, offset, self._head)
        until = len(ends) if end is None or not ends or ends[-1] <= end else bisect_right(ends, end, first)
        chunks: list[Buffer] = []
        total = 0
        for index in range(first, min(until, first + _MOST_BATCHES)):
            batch = self._batches[index]
            assert batch is not None
            size = len(batch)
            if total + size > limit and (chunks or not whole_first):
                break
            chunks.append(batch)
            total += size
        return chunks, total


def first_readable(cold_start: int | None, local_start: int) -> int:
    """Return the log start offset for readers. `cold_start` is that of the archive, `local_start` that in Redis."""
    return local_start if cold_start is None else min(cold_start, local_start)


def count_records(batches: list[Buffer], *, has_gaps: bool) -> int:
    """Return the number of records in consecutive batches.

    Without offset gaps, the first and last headers are enough.
    """
    if has_gaps:
        return sum(_COUNT.unpack_from(batch, _COUNT_AT)[0] for batch in batches)
    return next_offset(batches) - int(_SPAN.unpack_from(batches[0])[0])


def next_offset(batches: list[Buffer]) -> int:
    """Return the offset after consecutive batches. The last one must be separate."""
    base_offset, last_delta = _SPAN.unpack_from(batches[-1])
    return int(base_offset + last_delta + 1)


def span_of(batch: Buffer) -> tuple[int, int]:
    """Return the first and last offset of one batch."""
    base_offset, last_delta = _SPAN.unpack_from(batch)
    return base_offset, base_offset + last_delta


def producers_of(batches: list[Buffer]) -> set[int]:
    """Return the producer IDs of batches, of which several may be joined."""
    found: set[int] = set()
    for joined in batches:
        start, size = 0, len(joined)
        while start < size:
            found.add(_PRODUCER.unpack_from(joined, start + PRODUCER_AT)[0])
            start += _LENGTH_END + int(_LENGTH.unpack_from(joined, start + _LENGTH_AT)[0])
    return found


def codecs(batches: list[Buffer]) -> Iterator[int]:
    """Yield the compression codec number of each batch."""
    return (batch[ATTRIBUTES_AT + 1] & 7 for batch in batches)


def fitting(stored: list[StoredBatch], limit: int, cleaned_end: int = 0) -> tuple[list[Buffer], int]:
    """Return the first batch and those after it that fit into `limit` bytes, and their size.

    Stops at an offset gap, which retention may leave between two reads. A client must not skip one unnoticed. Up to
    `cleaned_end`, gaps are normal.
    """
    chunks: list[Buffer] = []
    total, following = 0, -1
    for found in stored:
        size = len(found.batch)
        if chunks and (total + size > limit or found.base_offset > max(following, cleaned_end)):
            break
        chunks.append(found.batch)
        total += size
        following = found.next_offset
    return chunks, total


def take(batches: "list[StoredBatch] | deque[StoredBatch]", limit: int) -> tuple[list[Buffer], int]:
    """Return batches of up to `limit` bytes, at least one, and their size."""
    chunks: list[Buffer] = []
    size = 0
    for each in batches:
        if chunks and size + len(each.batch) > limit:
            break
        chunks.append(each.batch)
        size += len(each.batch)
    return chunks, size
