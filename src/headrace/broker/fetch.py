"""Fetch: read many partitions at once, and wait for records without polling.

A fetch that finds less than `min_bytes` puts a watcher on its partitions and sleeps until enough has been
appended or its deadline comes. It then reads everything anew, so an answer is always one view of the logs.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from headrace.broker.cache import Buffer
from headrace.broker.clock import Clock, Timer
from headrace.broker.log import Watcher
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.fetch")


class Readable(Protocol):
    """A partition, as whoever fetches may read it."""

    @property
    def log_start(self) -> int:
        """First offset that may be read."""

    @property
    def log_end(self) -> int:
        """The offset behind the last record."""

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange or UnknownTopic."""

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing."""

    def cached(self, offset: int) -> bool:
        """Whether a read can be answered from memory."""

    def read_cached(self, offset: int, limit: int, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Stamped batches from memory and their size."""

    async def read_stored(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        """Stamped batches from Redis and their size."""

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every batch from now on."""

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One partition of a fetch."""

    partition: Readable | Exception
    """The error stands for a partition that could not be found."""
    offset: int
    max_bytes: int


class Found(msgspec.Struct, gc=False):
    """The answer for one partition, in the order of the asks."""

    error: Exception | None = None
    log_start: int = -1
    log_end: int = -1
    chunks: list[Buffer] = []
    size: int = 0


FetchDone = Callable[[list[Found]], None]


class Wakeups:
    """Fetches that found enough while they slept: each is gone on with once, however many batches came."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def add(self, again: Callable[[], None]) -> None:
        """Call `again` when `run` is called next, at the end of this turn of the event loop at the latest."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self.run)
        self._due.append(again)

    def run(self) -> None:
        """Go on with those that are due."""
        if not self._due:
            return
        due, self._due = self._due, []
        for again in due:
            try:
                again()
            except Exception:
                # One client's trouble; the others still get their answers.
                _log.exception("a fetch could not be answered")


class Fetch:
    """One fetch under way. `done` is called exactly once, unless it is cancelled before."""

    __slots__ = (
        "_asks", "_clock", "_deadline_ms", "_done", "_due", "_first", "_max_bytes", "_min_bytes", "_missing", "_task",
        "_timer", "_wakeups", "_watched",
    )  # fmt: skip

    def __init__(
        self,
        asks: Sequence[Ask],
        *,
        min_bytes: int,
        max_bytes: int,
        deadline_ms: int,
        first: int,
        clock: Clock,
        wakeups: Wakeups,
        done: FetchDone,
    ) -> None:
        """Prepare a fetch; `start` begins it.

        Args:
            asks: the partitions, in the order of the request.
            min_bytes: wait until this much is there, or the deadline.
            max_bytes: bound for all partitions together; the first batch found is returned all the same (KIP-74).
            deadline_ms: when to answer with what there is.
            first: index of the ask that is served first, so that a byte bound does not starve the last ones.
            clock: for the deadline.
            wakeups: goes on with it once enough was appended.
            done: gets the answers, in the order of `asks`.
        """
        self._asks = asks
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._deadline_ms = deadline_ms
        self._first = first % len(asks) if asks else 0
        self._clock = clock
        self._wakeups = wakeups
        self._done: FetchDone | None = done
        self._watched: list[Readable] = []
        self._missing = 0
        self._timer: Timer | None = None
        self._due = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Answer from memory at once if possible; else read Redis or wait."""
        found, stored = self._from_memory()
        if stored:
            self._task = asyncio.get_running_loop().create_task(self._from_storage(found, stored))
        else:
            self._settle(found)

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        self._done = None
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()

    def _from_memory(self) -> tuple[list[Found], list[int]]:
        """What memory has, and the indexes of the asks that need Redis."""
        asks = self._asks
        count = len(asks)
        found: list[Found] = [Found() for _ in asks]
        stored: list[int] = []
        left = self._max_bytes
        whole_first = True
        for step in range(count):
            index = (self._first + step) % count
            ask = asks[index]
            partition = ask.partition
            answer = found[index]
            if isinstance(partition, Exception):
                answer.error = partition
                continue
            try:
                partition.check_readable(ask.offset)
            except TopicError as error:
                answer.error = error
                continue
            if partition.at_end(ask.offset):
                continue
            if not partition.cached(ask.offset):
                stored.append(index)
                continue
            if left <= 0 and not whole_first:
                continue
            answer.chunks, answer.size = partition.read_cached(
                ask.offset, min(ask.max_bytes, left), whole_first=whole_first
            )
            if answer.size:
                whole_first = False
                left -= answer.size
        return found, stored

    async def _from_storage(self, found: list[Found], stored: list[int]) -> None:
        left = self._max_bytes - sum(answer.size for answer in found)
        shares = [index for index in stored if left > 0 or not any(answer.size for answer in found)]
        reads = []
        for index in shares:
            ask = self._asks[index]
            assert not isinstance(ask.partition, Exception)
            reads.append(ask.partition.read_stored(ask.offset, min(ask.max_bytes, max(left, 1))))
        whole_first = left == self._max_bytes
        for index, result in zip(shares, await asyncio.gather(*reads, return_exceptions=True), strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, Exception):
                    raise result
                found[index].error = result
                if not isinstance(result, TopicError):
                    _log.error("read failed", exc_info=result)
                continue
            chunks, size = result
            if size and (size <= left or whole_first):
                found[index].chunks, found[index].size = chunks, size
                left -= size
                whole_first = False
        self._task = None
        self._settle(found)

    def _settle(self, found: list[Found]) -> None:
        """Answer, or wait for what is missing."""
        total = 0
        answer_now = self._due or self._min_bytes <= 0
        for answer in found:
            total += answer.size
            if answer.error is not None:
                answer_now = True
        if answer_now or total >= self._min_bytes or self._clock.now_ms() >= self._deadline_ms:
            self._answer(found)
        else:
            self._wait(self._min_bytes - total)

    def _answer(self, found: list[Found]) -> None:
        self._stop_waiting()
        done, self._done = self._done, None
        if done is None:
            return
        for ask, answer in zip(self._asks, found, strict=True):
            partition = ask.partition
            if not isinstance(partition, Exception) and answer.error is None:
                answer.log_start = partition.log_start
                answer.log_end = partition.log_end
        done(found)

    def _wait(self, missing: int) -> None:
        self._missing = missing
        if not self._watched:
            for ask in self._asks:
                if not isinstance(ask.partition, Exception):
                    ask.partition.watch(self._grown)
                    self._watched.append(ask.partition)
        if self._timer is None:
            self._timer = self._clock.call_at(self._deadline_ms, self._expired)

    def _grown(self, size: int) -> None:
        """A batch was appended (0: a partition went away). Read once for all that come together, not once per batch."""
        self._missing = 0 if not size else self._missing - size
        if self._missing <= 0:
            self._stop_waiting()
            self._wakeups.add(self._again)

    def _again(self) -> None:
        if self._done is not None:
            self.start()

    def _expired(self) -> None:
        self._due = True
        self._stop_waiting()
        self.start()

    def _stop_waiting(self) -> None:
        for partition in self._watched:
            partition.unwatch(self._grown)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
