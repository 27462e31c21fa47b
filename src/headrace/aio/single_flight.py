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
    all others who come until that begins.
    """

    def __init__(self, ask: Callable[[K], Awaitable[T]]) -> None:
        """Nothing is asked. `ask`: finds out; an error is told to all who wait."""
        self._ask = ask
        self._under_way: dict[K, asyncio.Task[T]] = {}
        self._next: dict[K, asyncio.Task[T]] = {}
        """Those that have not begun."""

    async def get(self, what: K) -> T:
        """The answer. Who does not wait any more spoils it for nobody."""
        task = self._next.get(what)
        if task is None:
            task = self._next[what] = asyncio.get_running_loop().create_task(self._find_out(what))
            unheard(task)
        return await asyncio.shield(task)

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
