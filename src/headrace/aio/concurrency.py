"""Work that is done at once for several items, a bounded number at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def in_slices(
    items: Sequence[T],
    ask: Callable[[T], Awaitable[R]],
    at_once: int,
    between: Callable[[], Awaitable[object]] | None = None,
) -> AsyncIterator[list[tuple[T, R]]]:
    """Yield items with their results, slice by slice in their order; raises the first error that `ask` raises.

    Each call is a task of some kilobytes that takes the event loop ten microseconds before it sends anything. A request
    of a few bytes may be about every partition there is.

    Args:
        items: may have changed by the time that later slices are read from it.
        ask: called for every item of a slice before any of them is waited for.
        at_once: items of a slice.
        between: awaited before each slice except the first.
    """
    for first in range(0, len(items), at_once):
        if first and between is not None:
            await between()
        some = items[first : first + at_once]
        yield list(zip(some, await asyncio.gather(*map(ask, some)), strict=True))
