"""The HTTP listener: uvicorn on a bound socket.

uvicorn's `serve` would take over signals and logging, so its parts are called separately.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial

import structlog
import uvicorn
from starlette.types import ASGIApp

from headrace.broker.admin.audit import Audit
from headrace.broker.admin.connections import ConnectionLimits
from headrace.broker.runtime.clock import Clock, SystemClock, Timer
from headrace.http.connection import Connection
from headrace.security.access.principal import ANONYMOUS, Principal
from headrace.security.tls.contexts import Tls, principal_of
from headrace.security.tls.handshakes import TlsAcceptor

_GRACE_S = 2
"""Maximum seconds for which `stop` waits for requests in flight, without idle connections."""
_LOOK_MS = 1_000
"""Milliseconds between checks of timeouts."""
_NEVER_S = 1 << 30
_MOST = 1 << 31
_log = structlog.get_logger("headrace.http")


class HttpListener:
    """Serves one ASGI application on one socket."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        *,
        clock: Clock | None = None,
        limits: ConnectionLimits | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Create a listener on a bound socket, not yet listening, which `stop` closes."""
        self._sock = sock
        self._clock = clock or SystemClock()
        self._limits = limits or ConnectionLimits(_MOST, _MOST)
        self.pressed: Callable[[], bool] = lambda: False
        """Whether a response waits for memory."""
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        """Set without connections."""
        self._look: Timer | None = None
        self.ticks_ms = self._clock.ticks_ms
        self._tls = tls
        self._acceptor: TlsAcceptor | None = None
        self._protocol = type("_Connection", (Connection,), {"listener": self})
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                http=self._protocol,
                ws="none",
                # No proxy is configured, so such headers are not trusted.
                proxy_headers=False,
                timeout_keep_alive=_NEVER_S,  # see Connection.look
            )
        )
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to serve."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._sock] if self._tls is None else [])
        if self._tls is not None:
            # As uvicorn creates its protocols.
            server = self._server
            made = partial(self._protocol, config=server.config, server_state=server.server_state, app_state={})
            self._acceptor = TlsAcceptor(
                self._tls.contexts, self._limits, "HTTP", made, Audit(self._clock).handshake_failed
            )
            self._acceptor.start(self._sock)
        self._running = asyncio.create_task(self._server.main_loop(), name="http listener")
        self._look_later()

    @property
    def connections(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def admit(self, connection: Connection, host: str) -> str:
        """See `ConnectionOwner`."""
        self._connections.add(connection)
        if self._acceptor is not None:
            self._acceptor.through(connection.transport)
        return self._limits.admit(host)

    def principal_of(self, transport: asyncio.BaseTransport) -> Principal | None:
        """See `ConnectionOwner`."""
        return ANONYMOUS if self._tls is None else principal_of(transport, self._tls.mapping)

    def forget(self, connection: Connection, host: str) -> None:
        """See `ConnectionOwner`."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._limits.forget(host)
            if not self._connections:
                self._empty.set()

    def _look_later(self) -> None:
        self._look = self._clock.call_at(self._clock.ticks_ms() + _LOOK_MS, self._look_at_all)

    def _look_at_all(self) -> None:
        ticks_ms = self._clock.ticks_ms()
        pressed = self.pressed()
        for connection in tuple(self._connections):
            connection.look(ticks_ms, pressed=pressed)
        self._look_later()

    async def stop(self) -> None:
        """Answer requests in flight, then close all connections and the socket."""
        if self._running is None:
            self._sock.close()
            return
        if self._look is not None:
            self._look.cancel()
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running
        self._running = None
        if self._acceptor is not None:
            await self._acceptor.stop()
        for server in self._server.servers:
            server.close()
        self._sock.close()
        await self._end_connections()

    async def _end_connections(self) -> None:
        tasks = self._server.server_state.tasks
        for connection in tuple(self._connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(_GRACE_S):
                while self._connections:
                    self._empty.clear()
                    await self._empty.wait()
                if tasks:
                    await asyncio.wait(tuple(tasks))
        except TimeoutError:
            _log.info("connections closed with unsent responses", connections=len(self._connections), within_s=_GRACE_S)
        for connection in tuple(self._connections):
            connection.transport.abort()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tuple(tasks), timeout=_GRACE_S)
