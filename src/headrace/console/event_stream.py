"""Update open pages by server-sent events (HTML Living Standard, 9.2), with one stream per page.

After each sample a stream renders the page's data and sends the changed cells. If the structure changed, for example by
a new group member, it makes the page reload.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headrace.broker.virtual_clusters import UnknownCluster
from headrace.console.record_tail import RecordTail
from headrace.console.registry import NotFound, Page, Target, ViewRequest
from headrace.console.server_data import Figures
from headrace.console.text import name_of
from headrace.security.access.principal import ANONYMOUS
from headrace.text.addresses import holder
from headrace.topics.errors import TopicError, UnknownTopic

MOST = 64
"""Maximum open pages."""
MOST_OF_ONE = 16
"""Maximum open pages of one user, or of one address without login."""
_QUIET_MS = 10_000
"""After this time without changes a comment is sent, to detect closed connections."""
_SOON_MS = 400
"""Interval of closely watched pages."""
BANNER = "banner"
"""Cell of every page: why the server accepts no records."""
_CLOSELY = frozenset({"Group"})
"""Pages with events that last less than a second."""
_MOST_CELLS = 700
"""Larger pages are refreshed only after each sample."""
_json = msgspec.json.Encoder().encode


class Told(msgspec.Struct):
    """Data of a page."""

    cells: dict[str, str]
    shape: Any


LoadPage = Callable[[Page, Target], Awaitable[Told | None]]
Fragment = Callable[[str, Page, Target, object], str]
Granted = Callable[[Page, Target], bool]
AskFor = Callable[[Page, Target], ViewRequest]


class EventStreams:
    """All open streams."""

    def __init__(self, figures: Figures, load: LoadPage, fragment: Fragment, granted: Granted, ask_for: AskFor) -> None:
        """Start empty.

        `load` returns a page's data; None: its subject is gone.
        """
        self.figures = figures
        self.load = load
        self.fragment = fragment
        self.granted = granted
        self.ask_for = ask_for
        self.closing = False
        self._open: dict[EventStream, None] = {}
        """The oldest first."""

    def open(self, page: Page, target: Target) -> Response:
        """Return the stream of a page."""
        if self.closing or not self._has_room(_visitor(target)):
            return PlainTextResponse("Too many pages are open.\n", 503, {"retry-after": "10"})
        return EventStream(self, page, target)

    def _has_room(self, visitor: str) -> bool:
        """Return whether a visitor may open another stream. A visitor with many gives way to one with few."""
        pages = Counter(each.visitor for each in self._open)
        own = pages[visitor]
        if own >= MOST_OF_ONE:
            return False
        if len(self._open) < MOST:
            return True
        most, count = pages.most_common(1)[0]
        if own + 1 >= count:
            return False
        next(each for each in self._open if each.visitor == most).end()
        return True

    def add(self, stream: "EventStream") -> None:
        """Add an opened stream."""
        self._open[stream] = None
        self.figures.sampler.looks.add(stream.wake)

    def remove(self, stream: "EventStream") -> None:
        """Remove a closed stream."""
        self._open.pop(stream, None)
        self.figures.sampler.looks.discard(stream.wake)

    def close(self) -> None:
        """End all streams."""
        self.closing = True
        for stream in tuple(self._open):
            stream.wake()


class EventStream(Response):
    """The stream of a page."""

    media_type = "text/event-stream"

    def __init__(self, streams: EventStreams, page: Page, target: Target) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-content-type-options": "nosniff"})
        self._streams = streams
        self._page = page
        self._target = target
        self._woken = asyncio.Event()
        self._cells: dict[str, str] = {}
        self._shape: bytes | None = None
        self._told_ms = 0
        self._ended = False
        self.visitor = _visitor(target)

    def end(self) -> None:
        """End it, and free its place immediately."""
        self._ended = True
        self._streams.remove(self)
        self.wake()

    def wake(self) -> None:
        """Make the stream look for changes."""
        self._woken.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send changes until the page is closed or the server stops."""
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._streams.add(self)
        gone = asyncio.create_task(_gone(receive), name="console page closed")
        watched = self._watch()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            news = self._rows() if self._page.name == "Records" else self._news()
            async for text in news:
                if gone.done() or self._over:
                    break
                await send({"type": "http.response.body", "body": text, "more_body": True})
                if not await self._wait(gone):
                    break
        finally:
            watched()
            self._streams.remove(self)
            gone.cancel()
        with contextlib.suppress(OSError, RuntimeError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait(self, gone: "asyncio.Task[None]") -> bool:
        if self._over:
            return False
        woken = asyncio.create_task(self._woken.wait())
        timer = None
        if self._page.name in _CLOSELY and len(self._cells) <= _MOST_CELLS:
            clock = self._streams.figures.clusters.clock
            timer = clock.call_at(clock.ticks_ms() + _SOON_MS, self.wake)
        try:
            await asyncio.wait({woken, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            if timer is not None:
                timer.cancel()
        self._woken.clear()
        return not (gone.done() or self._over)

    @property
    def _over(self) -> bool:
        return self._ended or self._streams.closing

    def _watch(self) -> Callable[[], None]:
        if self._page.name != "Group":
            return lambda: None
        watched = self._streams.figures.sampler.watched
        key = self._target.query.get("cluster", "default"), name_of(self._target.raw_path.split("/", 2)[2])
        watched[key] = watched.get(key, 0) + 1

        def unwatch() -> None:
            watched[key] -= 1
            if not watched[key]:
                del watched[key]

        return unwatch

    async def _news(self) -> Any:
        clock = self._streams.figures.clusters.clock
        while True:
            try:
                told = await self._streams.load(self._page, self._target)
            except TopicError as error:
                yield _event("problem", str(error))
                continue
            if told is None:
                yield _event("gone", "")
                return
            parts = []
            shape = _json(repr(told.shape))
            if shape != self._shape:
                if self._shape is not None:
                    parts.append(_event("shape", ""))
                self._shape = shape
            changed = {key: value for key, value in told.cells.items() if self._cells.get(key) != value}
            self._cells = told.cells
            if changed:
                parts.append(_event("cells", changed))
            now_ms = clock.ticks_ms()
            if parts:
                self._told_ms = now_ms
            elif now_ms - self._told_ms >= _QUIET_MS:
                self._told_ms = now_ms
                parts.append(b": nothing new\n\n")
            yield b"".join(parts)

    async def _rows(self) -> Any:
        figures = self._streams.figures
        clock = figures.clusters.clock

        def soon() -> None:
            clock.call_at(clock.ticks_ms() + _SOON_MS, self.wake)

        try:
            tail = RecordTail(self._streams.ask_for(self._page, self._target), soon)
        except (NotFound, UnknownCluster, UnknownTopic):
            yield _event("gone", "")
            return
        with tail.watching():
            while self._streams.granted(self._page, self._target):
                try:
                    rows = await tail.rows()
                except TopicError as error:
                    yield _event("gone" if tail.deleted else "problem", str(error))
                    if tail.deleted:
                        return
                    continue
                parts = [_event("cells", {**tail.cells(), BANNER: figures.banner})]
                if rows:
                    html = self._streams.fragment("rows.html", self._page, self._target, {"rows": rows})
                    parts.append(_event("rows", {"html": html, "passed": tail.passed}))
                yield b"".join(parts)
            yield _event("gone", "")


def _visitor(target: Target) -> str:
    asker = target.asker
    return holder(asker.host) if asker.principal == ANONYMOUS else str(asker.principal)


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json(data))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
