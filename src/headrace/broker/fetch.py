"""Fetch: read many partitions at once, and wait for records without polling.

A fetch that finds less than `min_bytes` watches its partitions until enough is appended or its deadline passes. It then
reads everything again, so that a response is one consistent view of the logs.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter

import msgspec
import structlog

from headrace.broker.partition.cache import Buffer, next_offset, producers_of
from headrace.broker.partition.source import (
    COMMITTED,
    UNCOMMITTED,
    UNKNOWN_SIZE,
    Isolation,
    Readable,
    aborted_are_known,
)
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget, Waiter
from headrace.broker.runtime.clock import Clock, Timer
from headrace.broker.runtime.scheduler import SLICE_S
from headrace.topics.errors import TopicError
from headrace.topics.transactions import AbortedTransaction

_LEAST_WEIGHT = 2_048
_LOOKS = 16
"""Maximum reads of storage while records of unknown size arrive.

Each reads everything again. The cost of a fetch must not grow with the number of appends.
"""
_log = structlog.get_logger("headrace.broker")


class PartitionFetch(msgspec.Struct, frozen=True, gc=False):
    """One partition of a fetch."""

    partition: Readable | Exception
    """An exception if the partition was not found."""
    offset: int
    max_bytes: int
    largest: int = 1 << 20
    """Maximum bytes of a record batch in the partition."""
    join: bool = False
    """Whether batches may be joined; see `Readable.read_stored`."""
    isolation: Isolation = UNCOMMITTED


class Found(msgspec.Struct, gc=False):
    """Result for one partition."""

    error: Exception | None = None
    log_start: int = -1
    log_end: int = -1
    """High watermark."""
    stable_end: int = -1
    """Last stable offset, the end for `READ_COMMITTED`."""
    has_gaps: bool = False
    """See `Readable.has_gaps`."""
    chunks: list[Buffer] = []
    size: int = 0
    aborted: list[AbortedTransaction] = []
    """Aborted transactions of these records, for `READ_COMMITTED`."""


FetchDone = Callable[[list[Found]], None]
"""Gets the results. It must release their bytes, the sum of the sizes, from the budget."""


class Wakeups:
    """Fetches that are to continue after appends, each once however many batches arrive.

    A fetch may name thousands of partitions, and a batch may wake hundreds of fetches: each turn of the loop gets a
    time slice.
    """

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._over = False

    def add(self, again: Callable[[], None]) -> None:
        """Call `again` in the next `run`, at the latest in the next turn."""
        if not self._due:
            self._soon()
        self._due.append(again)

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._over = False
        if self._due:
            self.run()
            if self._due:
                self._soon()

    def run(self) -> None:
        """Continue due fetches, unless this turn has used its time slice."""
        due = self._due
        if not due or self._over:
            return
        until = perf_counter() + SLICE_S
        while due:
            again = due.popleft()
            try:
                again()
            except Exception:
                # An error of one client must not affect the others.
                _log.exception("fetch response failed")
            if due and perf_counter() >= until:
                self._over = True
                return


class DelayedFetch:
    """One fetch in progress. `done` is called exactly once, unless it is cancelled before."""

    __slots__ = (
        "_again_ms", "_asks", "_budget", "_clock", "_deadline_ms", "_done", "_due", "_ends", "_first", "_granted",
        "_local_starts", "_max_bytes", "_min_bytes", "_missing", "_needs", "_older", "_pause_ms", "_task", "_timer",
        "_unsized", "_waited_from", "_waiter", "_wakeups", "_watched", "waited",
    )  # fmt: skip

    def __init__(
        self,
        asks: Sequence[PartitionFetch],
        *,
        min_bytes: int,
        max_bytes: int,
        deadline_ms: int,
        first: int,
        clock: Clock,
        wakeups: Wakeups,
        budget: ReadBudget,
        done: FetchDone,
    ) -> None:
        """Prepare a fetch; `start` begins it.

        The first batch is returned even if it exceeds `max_bytes` (KIP-74), which `budget` may lower. At `deadline_ms`
        (ticks), the fetch responds with what it found. `first` is the index to serve first, so that a byte limit does
        not starve the last. `done` gets results in the order of `asks`.
        """
        self._asks = asks
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._deadline_ms = deadline_ms
        self._first = first % len(asks) if asks else 0
        self._clock = clock
        self._wakeups = wakeups
        self._budget = budget
        self._granted = 0
        self._needs: dict[int, int] = {}
        """Index of a partition -> bytes of its first record, if larger than expected."""
        self._waiter: Waiter | None = None
        self._done: FetchDone | None = done
        self._watched: list[Readable] = []
        self._missing = 0
        self._older: dict[int, tuple[int, list[AbortedTransaction]]] = {}
        """Partition -> aborted transactions from storage, whose markers are before an offset."""
        self._local_starts: dict[int, int] = {}
        """Partition that is read for committed records -> its first offset in Redis before the read."""
        self._ends: Sequence[int] = ()
        """Log end offsets known when storage was read. Empty: it was not read."""
        self._unsized = False
        """Whether records of unknown size were appended since the read."""
        self._pause_ms = 0
        self._again_ms = 0
        """Earliest ticks to read these."""
        self._timer: Timer | None = None
        self._due = False
        self._task: asyncio.Task[None] | None = None
        self._waited_from = 0.0
        """Start of the current wait for records, as `perf_counter`; 0: it does not wait."""
        self.waited = 0.0
        """Seconds that it waited for records."""

    def start(self) -> None:
        """Respond from memory if possible, else read Redis, or wait for records or budget."""
        granted = self._budget.grant(self._max_bytes)
        if granted:
            self._read(granted, self._max_bytes)
        else:
            self._wait_for_budget(self._max_bytes, 1)

    def _wait_for_budget(self, wanted: int, least: int) -> None:
        self._stop_waiting()
        self._waiter = self._budget.wait(wanted, least, partial(self._read, wanted=wanted))

    def _read(self, granted: int, wanted: int) -> None:
        self._waiter = None
        self._granted = granted
        self._missing, self._unsized, self._ends = 0, False, ()
        self._older.clear()
        found, stored = self._from_memory()
        if not stored:
            self._settle(found)
            return
        # Redis returns whole batches: reserve the largest in addition.
        largest = max(map(self._largest, stored))
        if wanted < self._max_bytes + largest:
            self._give_back(0)
            more = self._budget.grant(self._max_bytes + largest, largest)
            if not more:
                self._wait_for_budget(self._max_bytes + largest, largest)
                return
            self._granted = more
        # Watch first: records appended after the response of Redis would not be reported later.
        self._watch()
        self._ends = [
            -1 if isinstance(ask.partition, Exception) else ask.partition.visible_end(ask.isolation)
            for ask in self._asks
        ]
        self._task = asyncio.get_running_loop().create_task(self._from_storage(found, stored))

    def cancel(self) -> None:
        """Discard the fetch."""
        self._done = None
        self._stop_waiting()
        if self._waiter is not None:
            self._waiter.cancel()
        # A task continues: data requested from Redis counts against the budget until it arrives.

    def _give_back(self, kept: int) -> None:
        surplus, self._granted = self._granted - kept, kept
        self._budget.release(surplus)

    def _from_memory(self) -> tuple[list[Found], list[int]]:
        asks = self._asks
        count = len(asks)
        found: list[Found] = [Found() for _ in asks]
        stored: list[int] = []
        left = min(self._max_bytes, self._granted)
        whole_first = True
        for step in range(count):
            index = (self._first + step) % count
            ask = asks[index]
            partition = ask.partition
            answer = found[index]
            if isinstance(partition, Exception):
                answer.error = partition
                continue
            committed = ask.isolation == COMMITTED
            try:
                partition.check_readable(ask.offset)
                if committed:
                    partition.check_stable()
            except TopicError as error:
                answer.error = error
                continue
            if partition.at_end(ask.offset, ask.isolation):
                continue
            if committed:
                self._local_starts[index] = partition.local_start
            # Read-ahead waits its turn, else it would take the room of partitions that must be read.
            if (committed and ask.offset < partition.aborted_from) or not partition.cached(
                ask.offset, ahead=not stored
            ):
                stored.append(index)
                continue
            if left <= 0 and not whole_first:
                continue
            answer.chunks, answer.size = partition.read_cached(
                ask.offset,
                min(ask.max_bytes, left),
                whole_first=whole_first,
                join=ask.join,
                isolation=ask.isolation,
            )
            if answer.size:
                whole_first = False
                left -= _weight(answer)
        return found, stored

    async def _from_storage(self, found: list[Found], stored: list[int]) -> None:
        taken = sum(map(_weight, found))
        waiting = deque(stored)
        while self._done is not None and (shares := self._shares(waiting, taken)):
            reads = (self._read_stored(*each) for each in shares)
            for (index, _, _), (chunks, size, error) in zip(shares, await asyncio.gather(*reads), strict=True):
                if isinstance(error, NeedsRoom):
                    if taken:
                        # A later fetch may start with it.
                        continue
                    self._needs[index] = error.size
                    self._read_larger()
                    return
                found[index].error = error
                if size and (size <= self._max_bytes - taken or not taken):
                    found[index].chunks, found[index].size = chunks, size
                    taken += _weight(found[index])
        self._task = None
        self._settle(found)

    def _read_larger(self) -> None:
        """Restart with the bytes of the first record, which is returned however large it is."""
        self._task = None
        self._give_back(0)
        if self._done is not None:
            self.start()

    def _largest(self, index: int) -> int:
        return max(self._asks[index].largest, self._needs.get(index, 0))

    def _shares(self, waiting: deque[int], taken: int) -> list[tuple[int, int, int]]:
        """Take partitions that fit in the worst case, with bytes to read and maximum bytes of the first batch.

        Without `taken` bytes in the response, one partition is always read.
        """
        left = self._max_bytes - taken
        room = self._granted - taken
        shares: list[tuple[int, int, int]] = []
        while waiting and (left > 0 or not taken):
            ask = self._asks[waiting[0]]
            share = max(1, min(ask.max_bytes, left))
            most = max(share, self._largest(waiting[0]))
            if most > room and (taken or shares):
                break
            shares.append((waiting.popleft(), share, most))
            left -= share
            room -= most
            if left <= 0:
                break
        if len(shares) == 1 and not taken:
            # A single one may use the whole grant.
            index, share, most = shares[0]
            shares[0] = index, share, max(most, self._granted)
        return shares

    async def _read_stored(self, index: int, limit: int, first: int) -> tuple[list[Buffer], int, Exception | None]:
        ask = self._asks[index]
        assert not isinstance(ask.partition, Exception)
        try:
            chunks, size = await ask.partition.read_stored(
                ask.offset, limit, join=ask.join, first=first, isolation=ask.isolation
            )
            before = ask.partition.aborted_from
            if chunks and ask.isolation == COMMITTED and ask.offset < before:
                self._older[index] = (
                    before,
                    await ask.partition.aborted_before(
                        ask.offset, before, next_offset(chunks), partial(producers_of, chunks)
                    ),
                )
        except (TopicError, NeedsRoom) as error:
            return [], 0, error
        except Exception as error:
            _log.exception("read failed")
            return [], 0, error
        return chunks, size, None

    def _settle(self, found: list[Found]) -> None:
        if self._done is None:
            self._give_back(0)
            return
        total = 0
        answer_now = self._due or self._min_bytes <= 0
        for answer in found:
            total += answer.size
            if answer.error is not None:
                answer_now = True
        answer_now = answer_now or total >= self._min_bytes or self._clock.ticks_ms() >= self._deadline_ms
        if answer_now or (total and self._leaves_some(found)):
            self._answer(found)
        else:
            if total and self._ends:
                self._pace()
            self._wait(self._min_bytes - total)

    def _leaves_some(self, found: list[Found]) -> bool:
        """Whether the limit of bytes cut the result, so that waiting does not help.

        Records appended since do not count: they are read again.
        """
        for index, (ask, answer) in enumerate(zip(self._asks, found, strict=True)):
            partition = ask.partition
            if isinstance(partition, Exception) or answer.error is not None:
                continue
            following = next_offset(answer.chunks) if answer.chunks else ask.offset
            if not partition.at_end(following, ask.isolation) and not (self._ends and following >= self._ends[index]):
                return True
        return False

    def _pace(self) -> None:
        """Delay the next read, because storage had too few bytes of records whose size is unknown."""
        now_ms = self._clock.ticks_ms()
        self._pause_ms = self._pause_ms or max(1, (self._deadline_ms - now_ms) // _LOOKS)
        self._again_ms = now_ms + self._pause_ms

    def _answer(self, found: list[Found]) -> None:
        self._stop_waiting()
        done, self._done = self._done, None
        assert done is not None
        for index, (ask, answer) in enumerate(zip(self._asks, found, strict=True)):
            partition = ask.partition
            if not isinstance(partition, Exception) and answer.error is None:
                if ask.isolation == COMMITTED:
                    local_start = self._local_starts.get(index, 0)
                    _list_aborted(partition, ask.offset, answer, *self._older.get(index, (0, [])), local_start)
                answer.log_start = partition.log_start
                answer.log_end = partition.log_end
                answer.stable_end = partition.visible_end(Isolation.READ_COMMITTED)
                answer.has_gaps = partition.has_gaps or ask.offset < partition.cleaned_end
        self._give_back(sum(answer.size for answer in found))
        done(found)

    def _wait(self, missing: int) -> None:
        self._give_back(0)
        self._missing += missing
        if self._missing <= 0:
            self._read_again()
            return
        self._watch()
        self._waited_from = perf_counter()
        if self._timer is None:
            self._timer = self._clock.call_at(self._deadline_ms, self._expired)

    def _watch(self) -> None:
        if not self._watched:
            for ask in self._asks:
                if not isinstance(ask.partition, Exception):
                    ask.partition.watch(self._grown, ask.isolation)
                    self._watched.append(ask.partition)

    def _grown(self, size: int) -> None:
        """Count an appended batch (0: a partition was removed). Read once for all that arrive together."""
        self._missing -= size or self._min_bytes
        self._unsized = self._unsized or size >= UNKNOWN_SIZE
        if self._missing <= 0 and self._task is None:
            self._read_again()

    def _read_again(self) -> None:
        self._stop_waiting()
        if self._unsized and self._clock.ticks_ms() < self._again_ms:
            self._waited_from = self._waited_from or perf_counter()
            self._timer = self._clock.call_at(min(self._again_ms, self._deadline_ms), self._paused)
        else:
            self._end_wait()
            self._wakeups.add(self._again)

    def _end_wait(self) -> None:
        if self._waited_from:
            self.waited += perf_counter() - self._waited_from
            self._waited_from = 0.0

    def _paused(self) -> None:
        self._timer = None
        self._end_wait()
        self._wakeups.add(self._again)

    def _again(self) -> None:
        if self._done is not None:
            self.start()

    def _expired(self) -> None:
        self._due = True
        self._stop_waiting()
        self._end_wait()
        self._wakeups.add(self._again)
        self._wakeups.run()

    def _stop_waiting(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._grown)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _list_aborted(
    partition: Readable,
    offset: int,
    answer: Found,
    listed_before: int,
    older: list[AbortedTransaction],
    local_start: int,
) -> None:
    """List the aborted transactions of what is returned, as of now: a marker may have come while the fetch waited.

    Those with a marker before `listed_before` are in `older`. `local_start`: see `aborted_are_known`.
    """
    if not answer.chunks:
        return
    first, end = max(offset, listed_before), next_offset(answer.chunks)
    # Memory may also have forgotten some.
    if partition.aborted_from > first or not aborted_are_known(partition, offset, end, local_start):
        # The client's next fetch gets the records.
        answer.chunks, answer.size = [], 0
        return
    answer.aborted = older + partition.aborted(first, end, partial(producers_of, answer.chunks))


def _weight(answer: Found) -> int:
    """Return bytes with a minimum per batch, because each takes time."""
    return max(answer.size, len(answer.chunks) * _LEAST_WEIGHT)
