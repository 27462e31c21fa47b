"""Long work on the event loop, cut into slices so that nobody else waits for all of it.

One lane for the whole server: however many long requests are under way, each turn of the loop has one slice of one of
them. A slice is a few milliseconds, far above what an ordinary request takes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import TypeVar

SLICE_S = 0.004
"""How long one piece of work may hold the event loop."""

T = TypeVar("T")


class Lane:
    """The turns that long work takes, one per turn of the event loop, first come first served."""

    def __init__(self) -> None:
        self._queue: deque[Callable[[], None]] = deque()
        self._due = False

    def later(self, work: Callable[[], None]) -> None:
        """Call `work`, which takes a slice at most, when its turn comes."""
        self._queue.append(work)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        work = self._queue.popleft()
        self._due = bool(self._queue)
        if self._due:
            asyncio.get_running_loop().call_soon(self._next)
        work()

    async def turn(self) -> None:
        """Wait for a turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.later(lambda: None if future.done() else future.set_result(None))
        await future

    def pace(self) -> "Pace":
        """For a piece of work that begins now."""
        return Pace(self)


class Pace:
    """Tells a long piece of work when to let others go first.

    async for each in pace.each(many):
        ...
    """

    __slots__ = ("_lane", "_until")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._until = perf_counter() + SLICE_S

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
