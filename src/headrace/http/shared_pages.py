"""A large page for many clients, some of which may read slowly.

Concurrent requests share a page, which is sent in pieces. A connection that does not read holds one piece. A few older
pages are kept.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.aio.single_flight import SingleFlight
from headrace.broker.runtime.budget import ReadBudget

PIECE = 64 << 10
"""Bytes per piece. The next one waits until the client has read most of it."""
MOST_KEPT = 8
"""Maximum pages that clients are reading. Clients of the oldest one are disconnected beyond it."""
DRAIN = "headrace.drain"
"""ASGI extension with a coroutine function `drain` that waits for sent responses."""
DROP = "headrace.drop"
"""ASGI extension with a function `drop` that closes the connection."""


class SharedPages:
    """A page that changes."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], media_type: str, reads: ReadBudget) -> None:
        """`reads` counts unsent bytes, but responses never wait for it: monitoring is needed when memory is short."""
        self.media_type = media_type
        self.reads = reads
        self._make = make
        self._shared = SingleFlight(self._made)
        self._kept: dict[_Page, None] = {}
        """Oldest first."""

    async def answer(self) -> Response:
        """Return the page, built after this call."""
        return _Answer(self, await self._shared.get(None))

    async def _made(self, _: None) -> "_Page":
        return _Page(await self._make())

    def begin(self, page: "_Page", answer: "_Answer") -> None:
        """Count a response that starts."""
        self.reads.take(PIECE if page in self._kept else PIECE + len(page.content))
        page.leaving.add(answer)
        self._kept[page] = None
        if len(self._kept) > MOST_KEPT:
            for slow in tuple(next(iter(self._kept)).leaving):
                slow.drop()

    def end(self, page: "_Page", answer: "_Answer") -> None:
        """Count a response that was sent or dropped."""
        page.leaving.remove(answer)
        self.reads.release(PIECE)
        if not page.leaving:
            del self._kept[page]
            self.reads.release(len(page.content))


class _Page:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.leaving: set[_Answer] = set()


class _Answer(Response):
    def __init__(self, pages: SharedPages, page: _Page) -> None:
        super().__init__(media_type=pages.media_type, headers={"content-length": str(len(page.content))})
        self._pages = pages
        self._page = page
        self.drop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = scope.get("extensions", {})
        self.drop = extensions.get(DROP, {}).get("drop", self.drop)
        drain: Callable[[], Awaitable[None]] | None = extensions.get(DRAIN, {}).get("drain")
        content = memoryview(self._page.content)
        self._pages.begin(self._page, self)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, max(len(content), 1), PIECE):
                body, more = bytes(content[start : start + PIECE]), start + PIECE < len(content)
                await send({"type": "http.response.body", "body": body, "more_body": more})
                if drain is not None:
                    await drain()
        finally:
            self._pages.end(self._page, self)
