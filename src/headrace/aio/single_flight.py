"""One lookup for all callers that need the same answer at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from headrace.aio.tasks import unheard

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Shares lookups between callers. One lookup per key is in progress, and at most one more waits for it.

    No answer is older than its request: a caller that arrives during a lookup shares the next one with all others that
    arrive before it begins. With `joins`, it shares the lookup in progress.
    """

    def __init__(self, ask: Callable[[K], Awaitable[T]], *, joins: bool = False) -> None:
        """Start no lookup.

        Args:
            ask: looks a key up; its exception is raised in each caller.
            joins: whether an answer may be older than its request.
        """
        self._ask = ask
        self._joins = joins
        self._under_way: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}
        """Those that have not begun."""

    async def get(self, what: K) -> T:
        """Return the answer. A caller that is cancelled spoils it for no other."""
        return await asyncio.shield(self.task(what))

    def task(self, what: K) -> asyncio.Task[T]:
        """Return the question that `get` would wait for, for callers that wait without its result."""
        task = self._next.get(what) or (self._under_way.get(what) if self._joins else None)
        if task is None:
            task = self._next[what] = asyncio.get_running_loop().create_task(self._find_out(what))
            unheard(task)
        return task

    def tasks(self) -> list[asyncio.Task[T]]:
        """Return the questions that have no answer yet, to be cancelled or waited for."""
        return [*self._under_way.values(), *self._next.values()]

    async def _find_out(self, what: K) -> T:
        before = self._under_way.get(what)
        if before is not None:
            await asyncio.wait((before,))
        task = self._under_way[what] = self._next.pop(what)
        try:
            return await self._ask(what)
        finally:
            if self._under_way.get(what) is task:
                del self._under_way[what]
