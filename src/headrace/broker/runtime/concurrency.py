"""Asks storage about many partitions: a few at once, and in turns with all others who ask about many.

Each question is a task of some kilobytes, which takes the event loop ten microseconds before it is sent: a request of a
few bytes may ask about every partition there is.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from headrace.aio.tasks import unheard
from headrace.broker.runtime.scheduler import CooperativeScheduler

# Changes that are made whole, whoever stops waiting for them.
T = TypeVar("T")


async def to_the_end(change: Coroutine[Any, Any, T]) -> T:
    """Finish a change also where nobody waits for it any more.

    A client that goes away cancels its requests; half a change would leave a topic that is stored and not known here,
    or the other way round.
    """
    making = asyncio.ensure_future(change)
    unheard(making)
    return await asyncio.shield(making)


_FEW = 8
"""So many go without a turn."""
_AT_ONCE = 50
R = TypeVar("R")


async def a_few_at_once(
    lane: CooperativeScheduler, items: Sequence[T], ask: Callable[[T], Awaitable[R]]
) -> AsyncIterator[tuple[T, R]]:
    """Each item with its answer, in their order; raises the first error that `ask` raises."""
    for first in range(0, len(items), _AT_ONCE):
        if len(items) > _FEW:
            await lane.turn()
        some = items[first : first + _AT_ONCE]
        for item, answer in zip(some, await asyncio.gather(*map(ask, some)), strict=True):
            yield item, answer
