"""A proxy before a server. It withholds requests that end transactions, or the responses to them."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from struct import Struct
from typing import Final

from headrace.protocol.messages import EndTxnRequest

_END_TXN: Final = EndTxnRequest.API_KEY
_SIZE = Struct(">i")
_HEADER = Struct(">hhi")
_CORRELATION = Struct(">i")


class Gate:
    """Between clients and one server. Clients of a server that advertises `address` always come here."""

    def __init__(self, address: str, server: Callable[[], str]) -> None:
        """Make one that listens on HOST:PORT; `server` returns the server's HOST:PORT once there are clients."""
        self.address = address
        self._server = server
        self._withheld: str | None = None
        self._frames: list[bytes] = []
        self._links: set[asyncio.StreamWriter] = set()

    def withhold(self, what: str | None) -> None:
        """Withhold `requests` to end a transaction from now on, or `responses` to them; None: nothing."""
        self._frames = []
        self._withheld = what

    def has_withheld(self, name: str) -> bool:
        """Whether something of a transactional id that contains `name` was withheld since the last change."""
        return any(name.encode() in frame for frame in self._frames)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass what a client and the server send, until one of them closes its connection."""
        host, port = self._server().rsplit(":", 1)
        with contextlib.suppress(OSError):
            up, down = await asyncio.open_connection(host, int(port))
            self._links.add(down)
            ends: dict[int, bytes] = {}
            await asyncio.gather(self._pass_requests(reader, down, ends), self._pass_responses(up, writer, ends))
            self._links.discard(down)
        writer.close()

    async def close(self) -> None:
        """Close all connections."""
        while self._links:
            for each in self._links:
                each.close()
            await asyncio.sleep(0.01)

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: dict[int, bytes]
    ) -> None:
        async for frame in _frames(reader, writer):
            key, _, correlation = _HEADER.unpack_from(frame, _SIZE.size)
            if key == _END_TXN and self._withheld == "requests":
                self._frames.append(frame)
                continue
            if key == _END_TXN and self._withheld == "responses":
                ends[correlation] = frame
            writer.write(frame)

    async def _pass_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: dict[int, bytes]
    ) -> None:
        async for frame in _frames(reader, writer):
            end = ends.pop(_CORRELATION.unpack_from(frame, _SIZE.size)[0], None)
            if end is None:
                writer.write(frame)
            else:
                self._frames.append(end)


async def _frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    """The frames of one side, until it or the other one closes its connection; then both are closed."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            size = await reader.readexactly(_SIZE.size)
            yield size + await reader.readexactly(_SIZE.unpack(size)[0])
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def gate(address: str, server: Callable[[], str]) -> Iterator[Gate]:
    """A running one, see `Gate`."""
    made, loop = Gate(address, server), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    host, port = address.rsplit(":", 1)
    listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(made.serve, host, int(port)), loop).result(30)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(listening.close)
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
