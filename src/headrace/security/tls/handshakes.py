"""TLS handshakes and writes.

A handshake counts as a connection. Event loops encrypt a whole write before the socket takes any of it, and report
nothing as unsent, so the writer is not paused. Therefore large writes are split.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from headrace.aio.tasks import end
from headrace.security.tls.contexts import ACCEPTED, TlsContexts

HANDSHAKE_S = 10
"""Timeout of a handshake in seconds."""
_GOODBYE_S = 600
"""Maximum seconds for unsent bytes of a closed connection. Listeners end stalled ones earlier."""
_AGAIN_S = 1
"""Seconds until the next accept without free descriptors."""

Peer = tuple[str, int]
"""Address and port of a client."""

_log = structlog.get_logger("headrace.security.tls")


class Limits(Protocol):
    """Connection limits."""

    def admit(self, host: str) -> str:
        """Count a connection until `forget`, or return the reason to close it."""

    def forget(self, host: str) -> None:
        """Stop counting a connection."""


class TlsAcceptor:
    """Accepts the connections of one listener, and passes them to a protocol after their handshakes."""

    def __init__(
        self,
        contexts: TlsContexts,
        limits: Limits,
        listener: str,
        protocol: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[str, str, str], None],
        late: Callable[[str], int] = lambda host: 0,
        turn: Callable[[], int | None] = lambda: 0,
    ) -> None:
        """Create it.

        Args:
            contexts: TLS contexts.
            limits: count a connection during its handshake; its protocol then counts it and calls `through`.
            listener: name for logs.
            protocol: creates the protocol of a connection.
            failed: called with address, listener and reason of a failed handshake.
            late: returns ms before a rejection of an address; 0: accepted.
            turn: returns ms before the handshake; None: rejected.
        """
        self._contexts = contexts
        self._limits = limits
        self._listener = listener
        self._protocol = protocol
        self._failed = failed
        self._late = late
        self._turn = turn
        self._handshakes: set[asyncio.Task[None]] = set()
        self._counted: set[Peer] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self, listening: socket.socket) -> None:
        """Accept on a listening socket."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening), name="tls listener")

    async def stop(self) -> None:
        """Stop accepting, and cancel handshakes."""
        if self._accepting is not None:
            await end(self._accepting)
            self._accepting = None
        for task in tuple(self._handshakes):
            await end(task)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                _log.error("connections cannot be accepted", listener=self._listener, reason=error.strerror)
                await asyncio.sleep(_AGAIN_S)
                continue
            if self._limits.admit(address[0]):
                self._limits.forget(address[0])
                accepted.close()
                continue
            peer = address[:2]
            self._counted.add(peer)
            task = loop.create_task(self._receive(accepted, peer))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def through(self, transport: asyncio.BaseTransport) -> None:
        """Stop counting a connection after its handshake."""
        self._release(transport.get_extra_info("peername")[:2])

    def _release(self, peer: Peer) -> None:
        if peer in self._counted:
            self._counted.discard(peer)
            self._limits.forget(peer[0])

    async def _receive(self, accepted: socket.socket, peer: Peer) -> None:
        wait_ms = self._late(peer[0])
        turn_ms = None if wait_ms else self._turn()
        if turn_ms is None:
            await self._refuse(accepted, peer, wait_ms)
            return
        if turn_ms:
            try:
                await asyncio.sleep(turn_ms / 1000)
            except asyncio.CancelledError:
                await self._refuse(accepted, peer, 0)
                raise
        await self._begin(accepted, peer)

    async def _refuse(self, accepted: socket.socket, peer: Peer, wait_ms: int) -> None:
        try:
            await asyncio.sleep(wait_ms / 1000)
        finally:
            accepted.close()
            self._release(peer)

    async def _begin(self, accepted: socket.socket, peer: Peer) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ACCEPTED.set(accepted)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._contexts.current(),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=_GOODBYE_S,
            )
        except (OSError, TimeoutError) as error:
            self._failed(peer[0], self._listener, _reason(error))
        finally:
            self._release(peer)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"not over within {HANDSHAKE_S} s"
    return str(error) or type(error).__name__


def unread(transport: asyncio.BaseTransport, room: memoryview) -> int:
    """Read client data into `room` that the event loop has not delivered before the disconnect.

    uvloop drops such data if reading was paused.
    """
    secured = transport.get_extra_info("ssl_object")
    if not isinstance(secured, ssl.SSLObject):
        return 0
    try:
        return secured.read(len(room), room)  # type: ignore[return-value]  # a count, into a buffer
    except ssl.SSLError:
        return 0


PIECE: Final = 256 << 10
"""Bytes per write."""


def in_pieces(transport: asyncio.WriteTransport, size: int) -> bool:
    """Return whether a write must be split."""
    return size > PIECE and transport.get_extra_info("ssl_object") is not None


def write(transport: asyncio.WriteTransport, data: bytes | bytearray | memoryview) -> None:
    """Write, over TLS in pieces. Pieces after the first one that is not taken count as unsent."""
    if not in_pieces(transport, len(data)):
        transport.write(data)
        return
    view = memoryview(data)
    for start in range(0, len(view), PIECE):
        transport.write(view[start : start + PIECE])
