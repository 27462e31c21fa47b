"""Takes the URL of a server apart, and connects to it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from redis.asyncio.connection import SSLConnection, parse_url

from headrace.security.access.listeners import is_loopback
from headrace.storage.redis.sentinel import Place, finder

# Notices that the other side of a TCP connection is gone without a word.
_IDLE_S, _INTERVAL_S, _TRIES = 10, 3, 3


def notice_silence(connected: socket.socket) -> None:
    """Let the kernel end a connection whose other side is gone without a word, in about 20 s."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _TRIES),
        # Keepalive does not count while something sent is unacknowledged.
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE_S + _TRIES * _INTERVAL_S)),
    ):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)
_UNIX_SEND_BUFFER = 1 << 20


class Endpoint:
    """Where a URL leads, and what is said there first."""

    def __init__(self, url: str) -> None:
        """Take a URL apart. Raises ValueError."""
        url, self._finder = finder(url)
        options: dict[str, Any] = dict(parse_url(url))
        self._path: str | None = options.get("path")
        self.place: Place = (options.get("host", "localhost"), options.get("port", 6379))
        """Where it was when it was last looked for."""
        self.next: Place | None = None
        """Where it is tried first next time."""
        secure = options.pop("connection_class", None) is SSLConnection
        # redis-py knows all that a rediss:// URL may say of certificates.
        self._tls = SSLConnection(**options).ssl_context.get() if secure else None
        self.greeting: list[tuple[str, ...]] = []
        """The commands that are sent first."""
        if options.get("password") is not None:
            user = [options["username"]] if options.get("username") else []
            self.greeting.append(("AUTH", *user, options["password"]))
        if options.get("db"):
            self.greeting.append(("SELECT", str(options["db"])))

    @property
    def name(self) -> str:
        """Where it was when it was last looked for, for people: a path, or host and port."""
        host, port = self.place
        return self._path or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def moves(self) -> bool:
        """Whether another server may be found there next time."""
        return self._finder is not None

    async def names(self) -> AsyncGenerator[Place, None]:
        """Where it is said to be, again and again; nothing where it does not move."""
        if self._finder is not None:
            async for place in self._finder.names():
                yield place

    async def connect(self, make: Callable[[], Protocol]) -> Protocol:
        """Make a connection to where the server is now. Raises OSError, StorageUnavailable."""
        loop = asyncio.get_running_loop()
        if self._path is not None:
            _, link = await loop.create_unix_connection(make, self._path)
        else:
            if self._finder is not None:
                named, self.next = self.next, None
                self.place = named or await self._finder.find()
            _, link = await loop.create_connection(make, *self.place, ssl=self._tls)
        return link


def set_up(transport: asyncio.BaseTransport) -> bool:
    """Set the socket of a new connection up; whether the server is on this machine."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return False
    if connected.family == socket.AF_UNIX:
        # Fewer writes and wake-ups per megabyte: a sixth of our CPU. The kernel has its own limit.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BUFFER)
        return True
    notice_silence(connected)
    peer = transport.get_extra_info("peername")
    return peer is not None and is_loopback(peer[0])
