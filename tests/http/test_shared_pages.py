"""A page that its clients do not read costs one piece per connection, and delays no other request."""

import asyncio

from starlette.types import Message

from headrace.broker.runtime.budget import ReadBudget
from headrace.http.shared_pages import DRAIN, DROP, MOST_KEPT, PIECE, SharedPages

_SIZE = 10 * PIECE + 1


class _Pages:
    """Numbered pages, and clients that take them or not."""

    def __init__(self) -> None:
        self.made = 0
        self.reads = ReadBudget(1)  # short of memory from the first byte on
        self.pages = SharedPages(self._make, "text/plain", self.reads)

    async def _make(self) -> bytes:
        self.made += 1
        await asyncio.sleep(0)
        return bytes([self.made]) * _SIZE


class _Client:
    def __init__(self, pages: _Pages, *, takes: bool) -> None:
        self._taken = asyncio.Event()
        if takes:
            self._taken.set()
        self.body = bytearray()
        self.status = 0
        self.dropped = False
        self.task = asyncio.create_task(self._ask(pages.pages))

    async def _ask(self, pages: SharedPages) -> None:
        extensions = {DRAIN: {"drain": self._taken.wait}, DROP: {"drop": self.drop}}
        answer = await pages.answer()
        await answer({"type": "http", "extensions": extensions}, self._receive, self._send)

    async def _receive(self) -> Message:
        raise AssertionError("nothing is to be received")

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            assert (b"content-length", str(_SIZE).encode()) in message["headers"]
        elif not self.dropped:
            self.body += message["body"]

    def take(self) -> None:
        self._taken.set()

    def drop(self) -> None:
        self.dropped = True
        self._taken.set()


async def test_concurrent_requests_share_a_page_and_readers_do_not_wait() -> None:
    pages = _Pages()
    idle = [_Client(pages, takes=False) for _ in range(300)]
    while not all(each.status for each in idle):
        await asyncio.sleep(0)
    assert pages.made == 1
    assert pages.reads.used == _SIZE + 300 * PIECE
    assert all(len(each.body) == PIECE for each in idle)
    reader = _Client(pages, takes=True)
    await reader.task
    assert reader.body == b"\2" * _SIZE
    for each in idle:
        each.take()
    await asyncio.gather(*(each.task for each in idle))
    assert all(each.body == b"\1" * _SIZE for each in idle)
    assert pages.reads.used == 0


async def test_a_few_unread_pages_are_kept() -> None:
    pages = _Pages()
    clients = []
    for _ in range(MOST_KEPT + 3):
        clients.append(_Client(pages, takes=False))
        while not clients[-1].status:
            await asyncio.sleep(0)
    while any(not each.task.done() for each in clients[:3]):
        await asyncio.sleep(0)
    assert [each.dropped for each in clients] == [True] * 3 + [False] * MOST_KEPT
    assert pages.reads.used == MOST_KEPT * (_SIZE + PIECE)
    for each in clients:
        each.take()
    await asyncio.gather(*(each.task for each in clients))
    assert pages.reads.used == 0


async def test_a_canceled_request_does_not_affect_a_shared_page() -> None:
    pages = _Pages()
    gone, reader = _Client(pages, takes=True), _Client(pages, takes=True)
    await asyncio.sleep(0)
    gone.task.cancel()
    await reader.task
    assert (reader.status, pages.made, pages.reads.used) == (200, 1, 0)
