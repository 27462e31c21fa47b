"""What has to be known, or has to follow a change, is tried again while storage is away for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.topics.errors import StorageUnavailable

ASK_AGAIN_S = 0.05
_MOST_TRIES = 200
T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Make a step that does no harm when it is made twice: again and again, for ten seconds, while storage is away.

    Raises:
        StorageUnavailable: it still is.
    """
    for _ in range(_MOST_TRIES):
        try:
            return await step()
        except StorageUnavailable:
            await asyncio.sleep(ASK_AGAIN_S)
    return await step()
