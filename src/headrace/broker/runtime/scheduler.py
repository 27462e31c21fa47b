"""Long work on the event loop, cut into slices so that nobody else waits for all of it.

One lane for the whole server: however many long requests are under way, a turn of the loop has one slice of one of
them, or of several that are short, and a few turns without any follow: a short request takes some turns itself. A
slice is a few milliseconds, far above what an ordinary request takes.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.004
"""How long one piece of work may hold the event loop."""
TURN_S = 0.004
"""How long clients together are served as they come in one turn of the loop; then what is not urgent waits."""
PACKED_S = 0.04
"""After that each gets one request more."""
_SHARE = 4
"""Long work and what waits have as much of the loop's time as one part of so many that those had who were served."""
_MOST_S = 0.02
"""But never more at a time. So much have all together, too, that begin in one turn of the loop: each a slice, before it
waits for its turn."""
_STEPS = 4
"""Turns of the loop from one slice of long work to the next: a request that takes so many waits for one slice."""

_FEW = 8
"""So many are asked about without a turn."""
_AT_ONCE = 50
_ASKING = 16
"""Requests that may have that many questions open at once; the others wait. A client that disconnects cancels what it
asked for, and each open question costs microseconds: hundreds of clients, each with fifty of them, would hold the event
loop for a fifth of a second. Redis answers no faster for having more of them."""

T = TypeVar("T")
R = TypeVar("R")


class CooperativeScheduler:
    """The turns that long work takes, one every few turns of the event loop, first come first served."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], bool | None]] = deque()
        self._due = False
        self.turn_began = 0.0
        """When the first request of this turn of the loop was served (`time.perf_counter`); 0: none was."""
        self._served_s = 0.0
        """How long the loop was busy since long work that waits had its last turn."""
        self._begin_until = 0.0
        """Until when work that begins in this turn of the loop may go on; 0: none has begun."""
        self._listing = asyncio.Lock()
        self._asking = asyncio.Semaphore(_ASKING)

    def begin_turn(self, now: float) -> None:
        """A turn's first request is served now."""
        self.turn_began = now
        asyncio.get_running_loop().call_soon(self._turn_over)

    @property
    def crowded(self) -> bool:
        """Whether what may take long has to wait for a turn: others do, or so much was served in this one already."""
        return self._due or (self.turn_began > 0 and perf_counter() - self.turn_began >= TURN_S)

    def _turn_over(self) -> None:
        self._served_s += perf_counter() - self.turn_began
        self.turn_began = 0.0

    def later(self, work: Callable[[], bool | None]) -> None:
        """Call `work`, which takes a slice at most, when its turn comes.

        It answers True where more of it follows in the same turn of the loop: no other work is done beside that.
        """
        self._queue.append(work)
        if not self._due:
            self._served_s = 0.0  # from now on: nobody waited before
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        # The busier the server, the longer is a turn: what waits would have next to none of its time.
        until = perf_counter() + min(max(SLICE_S / 2, self._served_s / _SHARE), _MOST_S)
        self._served_s = 0.0
        queue = self._queue
        try:
            # Short pieces go together: each turn of the loop has its price.
            while not queue.popleft()() and queue and perf_counter() < until:
                pass
        finally:
            self._due = bool(queue)
            if self._due:
                self._step(_STEPS)

    def _step(self, left: int) -> None:
        # Where turns are long, as those who are served make them, they have had their time.
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
        """Yield each item with its result, in their order; raises the first error that `ask` raises.

        Some are asked about at once, and in turns with all other work that asks about many.
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
        """For a piece of work that begins now."""
        now = perf_counter()
        if not self._begin_until:
            self._begin_until = now + _MOST_S
            asyncio.get_running_loop().call_soon(self._begun)
        return TimeSlice(self, min(now + SLICE_S, self._begin_until))

    @contextlib.asynccontextmanager
    async def listing(self) -> AsyncIterator["TimeSlice"]:
        """For going through all of a long list: one does at a time, as hundreds may be asked for, of megabytes each.

        Nobody waits for storage within: all other lists would, too.
        """
        async with self._listing:
            await self.turn()
            yield self.pace()

    def _begun(self) -> None:
        self._begin_until = 0.0


class TimeSlice:
    """Tells a long piece of work when to let others go first.

    async for each in pace.each(many):
        ...
    """

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
        """The items; between them others go first when the slice is used up."""
        for item in items:
            if perf_counter() >= self._until:
                await self.rest()
            yield item

    async def drain(self, pieces: Iterable[object]) -> None:
        """Go through an iterator that does a small piece of work at each step."""
        for _ in pieces:
            if perf_counter() >= self._until:
                await self.rest()

    def a_few_at_once(self, items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> AsyncIterator[tuple[T, R]]:
        """See `CooperativeScheduler.a_few_at_once`."""
        return self._lane.a_few_at_once(items, ask)


async def _asked(items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> list[tuple[T, R]]:
    return list(zip(items, await asyncio.gather(*map(ask, items)), strict=True))
