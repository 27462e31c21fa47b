"""Bound the time that a client waits for an operation.

A stopped Redis neither responds nor closes connections, and changes run one at a time. The client gets 503, which the
SDKs retry, and the operation continues.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.oci.errors import OciError

T = TypeVar("T")
MOST_S = 25.0
"""Shorter than the timeouts of SDKs (60 s) and load balancers (30 to 60 s)."""
MOST_LEFT = 1_000
"""Maximum operations that continue without a client. No other operation starts above it,"""
MOST_BYTES = 64 << 20
"""or while their bodies exceed this size."""


class Unanswered:
    """Operations that continue after a 503."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Task[Any], int] = {}
        self._bytes = 0

    async def wait(self, operation: Coroutine[Any, Any, T], size: int) -> T:
        """Return an operation's response, or raise OciError 503 after `MOST_S`."""
        if len(self._left) >= MOST_LEFT or self._bytes > MOST_BYTES:
            operation.close()
            raise _no_answer("nothing was done")
        task = asyncio.ensure_future(operation)
        try:
            await asyncio.wait([task], timeout=MOST_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        self._left[task] = size
        self._bytes += size
        task.add_done_callback(self._over)
        raise _no_answer("what was asked for is still under way")

    def _over(self, task: "asyncio.Task[Any]") -> None:
        self._bytes -= self._left.pop(task)
        if not task.cancelled():
            task.exception()


def _no_answer(so: str) -> OciError:
    why = f"Redis, or changes that come before this one, have taken more than {MOST_S:.0f} s"
    return OciError(503, f"{why}: {so}", "ServiceUnavailable")
