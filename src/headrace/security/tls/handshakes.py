"""The beginning of a connection with TLS, and its writes.

A handshake is counted from its first packet on, and over in time or closed. Event loops encrypt a write whole, and ask
the socket only then whether it takes anything. However much that is, they report that nothing is left to be written,
and the writer is not paused: so large writes are made in pieces.
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
"""How long a client may take for its handshake."""
_GOODBYE_S = 600
"""How long a client may take for what is left when a connection is closed; the listeners end those sooner whose clients
take nothing. That the client agrees is not waited for (`security.tls.contexts`)."""
_AGAIN_S = 1
"""Until accepting is tried again, where the process has no descriptors left."""

Peer = tuple[str, int]
"""Address and port of a client."""

_log = structlog.get_logger("headrace.security.tls")


class Limits(Protocol):
    """How many connections there may be."""

    def admit(self, host: str) -> str:
        """Count a connection from an address until `forget`. Return why it must be closed; empty: accepted."""

    def forget(self, host: str) -> None:
        """A connection that was counted is gone."""


class TlsAcceptor:
    """Accepts the connections of one listener, and hands them to a protocol once their handshakes are through."""

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
        """Prepare; `start` accepts.

        Args:
            contexts: TLS contexts.
            limits: count a connection during its handshake; its protocol then counts it and calls `through`.
            listener: the name in logs.
            protocol: makes the protocol of a connection.
            failed: called after a failed handshake with the address, the listener and the reason.
            late: returns for how many ms an address waits before rejection; 0: accepted.
            turn: returns for how many ms a connection waits before its handshake; None: rejected.
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
        """Accept on a socket that listens."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening), name="tls listener")

    async def stop(self) -> None:
        """Accept no more, and give up the handshakes that are under way."""
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
        """The handshake of this connection is through: it is not counted here any more."""
        self._release(transport.get_extra_info("peername")[:2])

    def _release(self, peer: Peer) -> None:
        if peer in self._counted:
            self._counted.discard(peer)
            self._limits.forget(peer[0])

    async def _receive(self, accepted: socket.socket, peer: Peer) -> None:
        """Refuse a connection, or make its handshake when it is its turn."""
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
        """Close a connection after a delay, to slow down clients that reconnect at once."""
        try:
            await asyncio.sleep(wait_ms / 1000)
        finally:
            accepted.close()
            self._release(peer)

    async def _begin(self, accepted: socket.socket, peer: Peer) -> None:
        """Make the handshake; from its end on the connection is its protocol's."""
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
    """Why a handshake failed, in words; what the client sent is not among them."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error).lower().replace("_", " ")
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"not over within {HANDSHAKE_S} s"
    return str(error) or type(error).__name__


# What a client has sent with TLS, and the event loop has not handed on when the connection has ended.
#
# uvloop drops it where reading was paused when the client left.
def unread(transport: asyncio.BaseTransport, room: memoryview) -> int:
    """Read on in a connection that has ended: how many bytes are in `room` now; 0: there are none, or it has no TLS."""
    secured = transport.get_extra_info("ssl_object")
    if not isinstance(secured, ssl.SSLObject):
        return 0
    try:
        return secured.read(len(room), room)  # type: ignore[return-value]  # a count, into a buffer
    except ssl.SSLError:
        return 0


PIECE: Final = 256 << 10
"""Bytes that are written at a time."""


def in_pieces(transport: asyncio.WriteTransport, size: int) -> bool:
    """Whether so many bytes are too many for one write: over TLS, where they are more than a piece."""
    return size > PIECE and transport.get_extra_info("ssl_object") is not None


def write(transport: asyncio.WriteTransport, data: bytes | bytearray | memoryview) -> None:
    """Write; over TLS in pieces, of which all after the first that is not taken count as left to be written."""
    if not in_pieces(transport, len(data)):
        transport.write(data)
        return
    view = memoryview(data)
    for start in range(0, len(view), PIECE):
        transport.write(view[start : start + PIECE])
