"""One lookup for all callers that need the same answer at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from headrace.aio.tasks import unheard

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Shares lookups between callers. Each key has one lookup in progress and at most one waiting.

    No answer is older than its request: a caller that arrives during a lookup shares the next one. With `joins`, it
    shares the lookup in progress.
    """

    def __init__(self, ask: Callable[[K], Awaitable[T]], *, joins: bool = False) -> None:
        self._ask = ask
        self._joins = joins
        self._under_way: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}
        """Lookups that have not begun."""

    async def get(self, what: K) -> T:
        """Return the answer. Cancelling one caller does not affect the others."""
        return await asyncio.shield(self.task(what))

    def task(self, what: K) -> asyncio.Task[T]:
        """Return the lookup that `get` would await."""
        task = self._next.get(what) or (self._under_way.get(what) if self._joins else None)
        if task is None:
            task = self._next[what] = asyncio.get_running_loop().create_task(self._find_out(what))
            unheard(task)
        return task

    def tasks(self) -> list[asyncio.Task[T]]:
        """Return the unfinished lookups."""
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
