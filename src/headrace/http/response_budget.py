"""Large pages count as memory of answers until their clients have taken them: many may ask, and take nothing."""

from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headrace.broker.runtime.budget import ReadBudget

LARGE = 64 << 10
"""Bytes of a page from which on it counts."""
DRAIN = "headrace.drain"
"""The ASGI extension that tells when answers have left: under `drain` it has a coroutine function."""


async def counted(content: bytes, media_type: str, reads: ReadBudget) -> Response:
    """The answer with a page, once there is memory for it. Whoever gets it has it sent."""
    if len(content) <= LARGE:
        return PlainTextResponse(content, media_type=media_type)
    return _Counted(content, media_type, reads, await reads.acquire(len(content), len(content)))


class _Counted(PlainTextResponse):
    """An answer for which so many bytes were taken."""

    def __init__(self, content: bytes, media_type: str, reads: ReadBudget, granted: int) -> None:
        super().__init__(content, media_type=media_type)
        self._reads = reads
        self._granted = granted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and wait until it has left."""
        drain: Callable[[], Awaitable[None]] | None = scope.get("extensions", {}).get(DRAIN, {}).get("drain")
        try:
            await super().__call__(scope, receive, send)
            self.body = b""
            if drain is not None:
                await drain()
        finally:
            granted, self._granted = self._granted, 0
            self._reads.release(granted)
