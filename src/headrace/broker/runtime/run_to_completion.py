"""Changes that are made whole, whoever stops waiting for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.aio.tasks import unheard

T = TypeVar("T")


async def to_the_end(change: Coroutine[Any, Any, T]) -> T:
    """Finish a change also where nobody waits for it any more.

    A client that goes away cancels its requests; half a change would leave a topic that is stored and not known here,
    or the other way round.
    """
    making = asyncio.ensure_future(change)
    unheard(making)
    return await asyncio.shield(making)
