"""How long an operation is waited for where Redis gives no answer, or others' changes take long.

A Redis that is stopped neither answers nor closes its connections, and changes come one after the other. The operation
goes on; its client is told to try again, as the SDKs do by themselves where they retry 503.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from headrace.oci.errors import OciError

T = TypeVar("T")
MOST_S = 25.0
"""Before the clients' own time-outs: the SDKs give up after 60 s, load balancers after 30 to 60."""
MOST_LEFT = 1_000
"""Operations that go on without anybody waiting; no other begins while there are as many,"""
MOST_BYTES = 64 << 20
"""or while their bodies take more than this."""


class Unanswered:
    """The operations of one server that go on although their clients were told to try again."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Task[Any], int] = {}
        self._bytes = 0

    async def wait(self, operation: Coroutine[Any, Any, T], size: int) -> T:
        """What an operation answers, within `MOST_S`; raises what it raises, and OciError 503 where that is too late.

        Args:
            operation: goes on, whatever is told of it.
            size: bytes of its body.
        """
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
        # Nobody waits for an error any more.
        if not task.cancelled():
            task.exception()


def _no_answer(so: str) -> OciError:
    why = f"Redis, or changes that come before this one, have taken more than {MOST_S:.0f} s"
    return OciError(503, f"{why}: {so}", "ServiceUnavailable")
