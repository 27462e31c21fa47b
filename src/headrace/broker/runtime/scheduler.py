"""Long work on the event loop, in slices of a few milliseconds, so that short requests need not wait for all of it.

One queue for the server: a turn of the loop has one slice of one piece of long work, or several short pieces. Some
turns without any follow, because a short request also takes several turns.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.004
"""Seconds for which one piece of work may hold the event loop."""
TURN_S = 0.004
"""Seconds per turn of the loop for requests as they arrive. Then work that is not urgent waits."""
PACKED_S = 0.04
"""After this, each client gets one more request."""
_SHARE = 4
"""Long and waiting work gets this fraction of the time spent on requests."""
_MOST_S = 0.02
"""Maximum seconds per turn. It also limits all work that begins in one turn, each with a slice."""
_STEPS = 4
"""Turns of the loop between slices of long work: a request that takes as many waits for one slice."""

_FEW = 8
"""Lookups up to this number need no turn."""
_AT_ONCE = 50
_ASKING = 16
"""Maximum requests with that many concurrent lookups.

A disconnecting client cancels its lookups, at some microseconds each: hundreds of clients with fifty each would hold
the event loop for 0.2 s. More lookups do not make Redis faster.
"""

T = TypeVar("T")
R = TypeVar("R")


class CooperativeScheduler:
    """Queue of long work: first come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], bool | None]] = deque()
        self._due = False
        self.turn_began = 0.0
        """Time of the first request in this turn of the loop (`time.perf_counter`). 0: none."""
        self._served_s = 0.0
        """Seconds spent on requests since the last turn of long work."""
        self._begin_until = 0.0
        """Until when work that begins in this turn may run. 0: none has begun."""
        self._listing = asyncio.Lock()
        self._asking = asyncio.Semaphore(_ASKING)

    def begin_turn(self, now: float) -> None:
        """Note the first request of a turn."""
        self.turn_began = now
        asyncio.get_running_loop().call_soon(self._turn_over)

    @property
    def crowded(self) -> bool:
        """Whether work that may take long must wait: other work does or this turn is used up."""
        return self._due or (self.turn_began > 0 and perf_counter() - self.turn_began >= TURN_S)

    def _turn_over(self) -> None:
        self._served_s += perf_counter() - self.turn_began
        self.turn_began = 0.0

    def later(self, work: Callable[[], bool | None]) -> None:
        """Queue `work`, which takes at most a slice.

        If it returns True, more of it follows in the same turn of the loop, and no other work runs.
        """
        self._queue.append(work)
        if not self._due:
            self._served_s = 0.0  # nothing waited before
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        # Turns are longer on a busy server, so waiting work gets a share of that time.
        until = perf_counter() + min(max(SLICE_S / 2, self._served_s / _SHARE), _MOST_S)
        self._served_s = 0.0
        queue = self._queue
        try:
            # Short pieces run together, because each turn of the loop has a cost.
            while not queue.popleft()() and queue and perf_counter() < until:
                pass
        finally:
            self._due = bool(queue)
            if self._due:
                self._step(_STEPS)

    def _step(self, left: int) -> None:
        # Long turns have given requests their time.
        if left and self._served_s < SLICE_S:
            asyncio.get_running_loop().call_soon(self._step, left - 1)
        else:
            self._next()

    async def turn(self) -> None:
        """Wait for a turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> bool:
            if future.done():
                return False
            future.set_result(None)
            return True

        self.later(wake)
        await future

    async def a_few_at_once(self, items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> AsyncIterator[tuple[T, R]]:
        """Yield each item with its result, in order. Raises the first error of `ask`.

        Some run concurrently, in turns with other work of many lookups.
        """
        if len(items) <= _FEW:
            for pair in await _asked(items, ask):
                yield pair
            return
        for first in range(0, len(items), _AT_ONCE):
            async with self._asking:
                await self.turn()
                answered = await _asked(items[first : first + _AT_ONCE], ask)
            for pair in answered:
                yield pair

    def pace(self) -> "TimeSlice":
        """Return a time slice for work that begins now."""
        now = perf_counter()
        if not self._begin_until:
            self._begin_until = now + _MOST_S
            asyncio.get_running_loop().call_soon(self._begun)
        return TimeSlice(self, min(now + SLICE_S, self._begin_until))

    @contextlib.asynccontextmanager
    async def listing(self) -> AsyncIterator["TimeSlice"]:
        """Go through a long list, one at a time: hundreds may be requested, of megabytes each.

        Do not wait for storage within: all other lists would wait.
        """
        async with self._listing:
            await self.turn()
            yield self.pace()

    def _begun(self) -> None:
        self._begin_until = 0.0


class TimeSlice:
    """Limits how long a piece of work runs before other work."""

    __slots__ = ("_lane", "_until")

    def __init__(self, lane: CooperativeScheduler, until: float) -> None:
        self._lane = lane
        self._until = until

    @property
    def over(self) -> bool:
        """Whether the slice is used up."""
        return perf_counter() >= self._until

    async def rest(self) -> None:
        """Let other work run, then begin a new slice."""
        await self._lane.turn()
        self._until = perf_counter() + SLICE_S

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, with pauses for other work."""
        for item in items:
            if perf_counter() >= self._until:
                await self.rest()
            yield item

    async def drain(self, pieces: Iterable[object]) -> None:
        """Run an iterator that does a small piece of work at each step."""
        for _ in pieces:
            if perf_counter() >= self._until:
                await self.rest()

    def a_few_at_once(self, items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> AsyncIterator[tuple[T, R]]:
        """See `CooperativeScheduler.a_few_at_once`."""
        return self._lane.a_few_at_once(items, ask)


async def _asked(items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> list[tuple[T, R]]:
    return list(zip(items, await asyncio.gather(*map(ask, items)), strict=True))
