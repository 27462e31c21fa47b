"""A large page that many clients may ask for at once and leave untaken.

All requests that wait have the same page, which is made once and leaves in pieces: an unread connection holds
one piece, and no other request waits for it. Of older pages a few are kept for clients that still take them.
"""

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.aio.single_flight import SingleFlight
from headrace.broker.runtime.budget import ReadBudget

PIECE = 64 << 10
"""Bytes that leave at a time; the next piece waits until the client has taken most of them."""
MOST_KEPT = 8
"""Pages that clients are taking. When one more is made, those who still take the oldest are disconnected."""
DRAIN = "headrace.drain"
"""The ASGI extension that tells when answers have left: under `drain` it has a coroutine function."""
DROP = "headrace.drop"
"""The ASGI extension that closes a connection: under `drop` it has a function without arguments."""


class SharedPages:
    """One page of a server, as it changes."""

    def __init__(self, make: Callable[[], Awaitable[bytes]], media_type: str, reads: ReadBudget) -> None:
        """Have none.

        Args:
            make: makes the page.
            media_type: what it is.
            reads: counts what is on its way. Nothing waits for it: who watches a server does so when memory is short.
        """
        self.media_type = media_type
        self.reads = reads
        self._make = make
        self._shared = SingleFlight(self._made)
        self._kept: dict[_Page, None] = {}
        """The oldest first."""

    async def answer(self) -> Response:
        """The page as it is after this was called."""
        return _Answer(self, await self._shared.get(None))

    async def _made(self, _: None) -> "_Page":
        return _Page(await self._make())

    def begin(self, page: "_Page", answer: "_Answer") -> None:
        """An answer begins to leave."""
        self.reads.take(PIECE if page in self._kept else PIECE + len(page.content))
        page.leaving.add(answer)
        self._kept[page] = None
        if len(self._kept) > MOST_KEPT:
            for slow in tuple(next(iter(self._kept)).leaving):
                slow.drop()

    def end(self, page: "_Page", answer: "_Answer") -> None:
        """It has left, or its client is gone."""
        page.leaving.remove(answer)
        self.reads.release(PIECE)
        if not page.leaving:
            del self._kept[page]
            self.reads.release(len(page.content))


class _Page:
    """A page as it was at one time."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.leaving: set[_Answer] = set()


class _Answer(Response):
    """An answer with a page."""

    def __init__(self, pages: SharedPages, page: _Page) -> None:
        super().__init__(media_type=pages.media_type, headers={"content-length": str(len(page.content))})
        self._pages = pages
        self._page = page
        self.drop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it piece by piece, and wait until it has left."""
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
