"""What has to be known, or has to follow a change, is tried again while storage is away for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.broker.runtime.clock import Clock, pause
from headrace.topics.errors import LockLost, StorageUnavailable


# Trying again, less and less often: what does not work is mostly the same for many partitions at once.
class Backoff:
    """Pauses, each twice as long as the one before, up to a bound."""

    def __init__(self, clock: Clock, first_ms: int, most_ms: int) -> None:
        """The first pause and the longest one, by the clock's ticks."""
        self._clock = clock
        self._next_ms = first_ms
        self._most_ms = most_ms

    async def pause(self) -> None:
        """Wait before the next try."""
        duration_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, self._most_ms)
        await pause(self._clock, duration_ms)


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
