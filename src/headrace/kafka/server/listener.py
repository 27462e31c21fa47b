"""Kafka listener: a socket, its connections and their shared state."""

import asyncio
import socket
from collections.abc import Mapping
from functools import partial

import structlog

from headrace.broker.admin.connections import ConnectionLimits
from headrace.broker.broker import Broker
from headrace.broker.coordinator.event_log import logs_requests
from headrace.broker.logins import Admitted, Logins
from headrace.broker.runtime.clock import Timer
from headrace.kafka import apis
from headrace.kafka.apis import api_versions
from headrace.kafka.errors import NORMAL_FLOW
from headrace.kafka.server.connection import Connection
from headrace.kafka.server.memory_pool import MemoryPool
from headrace.kafka.server.registry import APIS, Api
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.restriction import Restriction
from headrace.kafka.server.timeouts import SWEEP_MS
from headrace.metrics.counters import ConnectedClient, Counters
from headrace.security.access.principal import ANONYMOUS
from headrace.security.tls.contexts import Tls, principal_of
from headrace.security.tls.handshakes import TlsAcceptor

SCRATCH_BYTES = 256 << 10
_LEAST_SWEEP_MS = 100
_LOOK_MS = 2_000
_STALLED_MS = 10_000
"""Milliseconds in which a client must move `_LEAST_MOVED` bytes while others wait for its memory."""
_LEAST_MOVED = 64 * _STALLED_MS
"""64 KB per second, as for HTTP bodies, so that a slow client cannot block all others."""


class _Stall:
    def __init__(self, progress: tuple[int, int], since_ms: int) -> None:
        self._last = progress
        self.since_ms = since_ms
        self.moved = 0
        """Bytes moved."""

    def is_another(self, progress: tuple[int, int]) -> bool:
        (sent, left), (sent_before, left_before) = progress, self._last
        self._last = progress
        if sent < sent_before or left > left_before:
            return True
        self.moved += sent - sent_before + left_before - left
        return False


class KafkaListener:
    """Accepts Kafka clients on one socket."""

    def __init__(
        self,
        broker: Broker,
        *,
        max_request_bytes: int,
        max_idle_ms: int = -1,
        name: str = "PLAINTEXT",
        logins: Logins | None = None,
        counters: Counters | None = None,
        limits: ConnectionLimits | None = None,
        tls: Tls | None = None,
        restriction: Restriction | None = None,
    ) -> None:
        """Create a listener. `limits` are shared by all listeners."""
        apis.load()
        self.served: Mapping[int, Api] = APIS if restriction is None else restriction.served()
        self.telling = logs_requests(structlog.get_logger())
        """Whether each connection and request is logged."""
        self.broker = broker
        self.name = name
        self.logins = logins
        self.max_request_bytes = max_request_bytes
        self.scratch = bytearray(SCRATCH_BYTES)
        self.scratch_view = memoryview(self.scratch)
        names: dict[int | str, str] = {key: api.name for key, api in APIS.items()}
        self.counted = (counters or Counters()).listener(name, names, NORMAL_FLOW)
        self.memory = MemoryPool(broker.settings.queued_max_request_bytes)
        self.memory.pressed = self._look_later
        broker.reads.pressed.append(self._look_later)
        self.connections: set[Connection] = set()
        settings = broker.settings
        self._limits = limits or ConnectionLimits(settings.max_connections, settings.max_connections_per_ip)
        self._stalls: dict[Connection, _Stall] = {}
        """Connections that hold memory others wait for."""
        self._ending: dict[Connection, Timer] = {}
        """Deadlines of closed connections."""
        self._look: Timer | None = None
        self._server: asyncio.Server | None = None
        self._tls = tls
        self._acceptor: TlsAcceptor | None = None
        self._max_idle_ms = max_idle_ms
        self._sweep: Timer | None = None
        self._overdue: asyncio.Task[None] | None = None
        self.gone: set[Connection] = set()
        """Lost connections with requests that storage has not answered."""

    async def start(self, sock: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._overdue = asyncio.get_running_loop().create_task(self._look_for_overdue(), name="overdue")
        if self._max_idle_ms >= 0:
            self._sweep_later()
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=1024)
        else:
            self._acceptor = TlsAcceptor(
                self._tls.contexts,
                self._limits,
                self.name,
                lambda: Connection(self),
                self.broker.access.audit.handshake_failed,
                self.broker.quotas.connecting,
                self.broker.quotas.arriving,
            )
            self._acceptor.start(sock)

    def _sweep_later(self) -> None:
        clock = self.broker.clock
        self._sweep = clock.call_at(clock.ticks_ms() + max(_LEAST_SWEEP_MS, self._max_idle_ms // 4), self._close_idle)

    def _close_idle(self) -> None:
        oldest = self.broker.clock.ticks_ms() - self._max_idle_ms
        for connection in tuple(self.connections):
            connection.close_if_idle(oldest)
        self._sweep_later()

    async def _look_for_overdue(self) -> None:
        """Answer overdue requests until cancelled.

        One loop is cheaper than a timer per request. It uses the event loop's time, as a test clock may jump.
        """
        while True:
            pace = self.broker.lane.pace()
            async for connection in pace.each(tuple(self.connections)):
                await pace.drain(connection.answer_overdue(self.broker.clock.ticks_ms()))
            async for connection in pace.each(tuple(self.gone)):
                if not connection.cancel_tasks():
                    self.gone.discard(connection)
            await asyncio.sleep(SWEEP_MS / 1000)

    def clients(self) -> dict[ConnectedClient, tuple[int, int]]:
        """Return connections and total requests by client."""
        found: dict[ConnectedClient, tuple[int, int]] = {}
        for connection in self.connections:
            client = ConnectedClient(connection.client_id, connection.software, connection.client_host)
            connections, requests = found.get(client, (0, 0))
            found[client] = connections + 1, requests + connection.requests
        return found

    # Admission

    def admit(self, connection: Connection) -> None:
        """See `frames.Listener`."""
        self.connections.add(connection)
        if self._acceptor is not None:
            self._acceptor.through(connection.transport)
        reason = self._limits.admit(connection.client_host)
        if reason:
            connection.close(reason, expected=True)
        elif self._acceptor is None and (wait_ms := self.broker.quotas.connecting(connection.client_host)):
            connection.refuse_in(wait_ms, "more connections than its quota (connection_creation_rate)")
        elif self._acceptor is None:
            self._take_turn(connection)
        elif self._tls is not None and self.logins is None:
            principal = principal_of(connection.transport, self._tls.mapping)
            if principal is None:
                connection.close("no rule of ssl.principal.mapping.rules fits the name in its certificate")
            elif principal is not ANONYMOUS:
                connection.enter(Admitted(principal, self.broker), "SSL")

    def _take_turn(self, connection: Connection) -> None:
        wait_ms = self.broker.quotas.arriving()
        if wait_ms is None:
            connection.close("too many connections wait for their turn (max.connection.creation.rate)", expected=True)
        elif wait_ms:
            connection.mute(wait_ms)

    def end_later(self, connection: Connection) -> None:
        """See `frames.Listener`."""
        clock = self.broker.clock
        end = partial(connection.abort, f"closed for {_STALLED_MS // 1000} s, and its answers not taken")
        self._ending[connection] = clock.call_at(clock.ticks_ms() + _STALLED_MS, end)

    def forget(self, connection: Connection) -> None:
        """See `frames.Listener`."""
        if (ending := self._ending.pop(connection, None)) is not None:
            ending.cancel()
        self.connections.discard(connection)
        self._stalls.pop(connection, None)
        self._limits.forget(connection.client_host)

    # Stalled connections

    def _look_later(self) -> None:
        if self._look is None:
            clock = self.broker.clock
            self._look = clock.call_at(clock.ticks_ms() + _LOOK_MS, self._close_stalled)

    def _close_stalled(self) -> None:
        self._look = None
        if not self.memory.short and not self.broker.reads.short:
            self._stalls.clear()
            return
        ticks_ms = self.broker.clock.ticks_ms()
        for connection in tuple(self.connections):
            progress = connection.progress
            stall = self._stalls.get(connection)
            if progress is None:
                self._stalls.pop(connection, None)
            elif stall is None or stall.is_another(progress):
                self._stalls[connection] = _Stall(progress, ticks_ms)
            elif ticks_ms - stall.since_ms >= _STALLED_MS:
                if stall.moved < _LEAST_MOVED:
                    connection.abort(f"{stall.moved} bytes in {_STALLED_MS // 1000} s while others wait for memory")
                self._stalls[connection] = _Stall(progress, ticks_ms)
        self._look_later()

    async def stop(self) -> None:
        """Stop accepting and close all connections."""
        if self._look is not None:
            self._look.cancel()
        for timer in (self._sweep, self._overdue):
            if timer is not None:
                timer.cancel()
        if self._server is not None:
            self._server.close()
        if self._acceptor is not None:
            await self._acceptor.stop()
        for connection in tuple(self.connections):
            connection.close("the server stops", expected=True)

    def close_cluster(self, cluster: str) -> None:
        """Close the connections of a deleted virtual cluster."""
        for connection in tuple(self.connections):
            if connection.broker.cluster == cluster:
                connection.close(f"its virtual cluster {cluster} was deleted", expected=True)

    def refuse_api_versions(self, context: RequestContext) -> None:
        """See `frames.Listener`."""
        context.answer(api_versions.refusal(context), version=0)
