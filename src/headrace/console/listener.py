"""The HTTP listener: uvicorn on a socket that is already bound, inside the server's own event loop.

Signals and logging stay the server's: uvicorn is run piece by piece because its `serve` would take both over.
"""

import asyncio
import contextlib
import socket
from uuid import uuid4

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_KEEP_S = 75
"""How long a connection may rest between two requests: longer than clients' heartbeats, whose connection would else be
closed just when they use it again."""
_MOST_HEAD = 64 << 10
"""Bytes of a request's headers together, and of anything else that is taken in before a stranger can be told apart."""
_TOO_LONG = "The head of the request is longer than 64 KiB."
_GRACE_S = 2
"""How long `stop` waits for answers under way. A browser's idle connection does not count."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's own; besides, headers have an end, what is no HTTP is answered in JSON, a connection may be dropped."""

    _fields = 0
    """Bytes of the present request's headers, trailers too."""
    _unread = 0
    """Bytes that have come since the last thing that was whole: of one header, or of the target."""
    _progress = False
    _wrong: str | None = None

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._unread = 0 if self._progress else self._unread + len(data)
        if self._unread > _MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._progress = True
        self._fields += len(name) + len(value)
        if self._fields > _MOST_HEAD:
            self._wrong = _TOO_LONG
            raise ValueError(_TOO_LONG)
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline:
            # uvicorn reads on after every answer, so that what waits would grow for as long as somebody sends.
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        self._progress = True
        self._fields = 0
        super().on_message_begin()
        self.scope["extensions"] = {"headrace.drop": {"drop": self._drop}}

    def _drop(self) -> None:
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode({"code": "CannotParseRequest", "message": self._wrong or msg})
        head = (
            b"HTTP/1.1 400 Bad Request\r\nopc-request-id: %b\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n" % (uuid4().hex.upper().encode(), len(body))
        )
        self.transport.write(head + body)
        self.transport.close()


class HttpListener:
    """Serves one ASGI application on one socket."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        """Take over `sock`, bound and not yet listening; it is closed by `stop`."""
        self._sock = sock
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                http=_Protocol,
                ws="none",
                # Who says in a header where a request came from is not believed: there is no proxy known to us.
                proxy_headers=False,
                timeout_keep_alive=_KEEP_S,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Requests are answered once this returns."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._sock])
        self._running = asyncio.create_task(self._server.main_loop(), name="http listener")

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._server.server_state.connections)

    async def stop(self) -> None:
        """Answer what is under way, then close every connection. Also fine when never started."""
        if self._running is None:
            self._sock.close()
            return
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        self._running = None
        await self._server.shutdown(sockets=[self._sock])
