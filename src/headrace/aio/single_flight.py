"""One question for all who ask the same at the same time: many may want to know what takes long to find out."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from headrace.aio.tasks import unheard

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Asks, and tells all who wait. Of one thing one question is under way at a time, and one more waits for it.

    No answer is older than its question: who asks while a question is under way has the answer of the next one, with
    all others who come until that begins. With `joins` they have the answer to the question under way.
    """

    def __init__(self, ask: Callable[[K], Awaitable[T]], *, joins: bool = False) -> None:
        """Nothing is asked.

        Args:
            ask: finds out; an error is raised for all who wait.
            joins: whether an answer may be older than its question.
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
