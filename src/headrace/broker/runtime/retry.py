"""What has to be known, or has to follow a change, is tried again while storage is away for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.topics.errors import LockLost, StorageUnavailable

ASK_AGAIN_S = 0.05
PATIENCE_S = 10.0
T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
    """Make a step that does no harm when it is made twice: again and again, for as long, while storage is away.

    Raises:
        LockLost: at once, for another try finds the lock as lost; StorageUnavailable: it still is away.
    """
    now = asyncio.get_running_loop().time
    until = now() + patience_s
    while True:
        try:
            return await step()
        except LockLost:
            raise
        except StorageUnavailable:
            if now() >= until:
                raise
        await asyncio.sleep(ASK_AGAIN_S)
