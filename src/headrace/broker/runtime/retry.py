"""Retries while storage is unavailable."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.aio.retry import Backoff, retry
from headrace.broker.runtime.clock import Clock, pause
from headrace.topics.errors import LockLost, StorageUnavailable

ASK_AGAIN_S = 0.05
PATIENCE_S = 10.0
T = TypeVar("T")


def backoff(clock: Clock, first_ms: int, longest_ms: int) -> Backoff:
    """Return doubling pauses in a clock's ticks."""
    return Backoff(first_ms, longest_ms, lambda duration_ms: pause(clock, int(duration_ms)))


async def retry_while_unavailable(step: Callable[[], Awaitable[T]], patience_s: float | None = PATIENCE_S) -> T:
    """Repeat a step while storage is unavailable. It must be safe to repeat.

    Args:
        step: called at least once.
        patience_s: time limit of the retries. None: no limit.

    Raises:
        LockLost: at once, because the lock stays lost.
        StorageUnavailable: it is still unavailable after that time.
    """
    now = asyncio.get_running_loop().time
    until = None if patience_s is None else now() + patience_s
    return await retry(
        step,
        StorageUnavailable,
        Backoff(ASK_AGAIN_S),
        unless=(LockLost,),
        is_over=lambda: until is not None and now() >= until,
    )
