"""Takes the URL of a server apart, finds the primary that Sentinels name, and connects."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.connection import SSLConnection, parse_url
from redis.exceptions import RedisError

from headrace.security.access.listeners import is_loopback
from headrace.storage.redis.clients import sentinels
from headrace.storage.redis.url import Kind, StorageUrl
from headrace.topics.errors import StorageUnavailable

Place = tuple[str, int]
"""Host and port of a server."""

LOOK_S = 0.25
"""How often Sentinels are asked whom they name. A Sentinel itself sees a promotion within a second."""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0
"""How soon a server that was named is tried once more, at first and at last."""


class Tries:
    """How often the servers that Sentinels name are tried.

    If Sentinels disagree, or their server accepts no connection, each try returns to the previous server. It costs a
    connection with all its pending commands.
    """

    def __init__(self) -> None:
        self._tried: dict[Place, tuple[float, float]] = {}
        """Until when one is left alone, and for how long that was."""

    def may(self, named: Place, now_s: float) -> bool:
        """Whether to try one that is named, which is then left alone for a while; others are not."""
        until_s, pause_s = self._tried.get(named, (now_s, 0.0))
        if now_s < until_s:
            return False
        pause_s = min(2 * pause_s, _LAST_PAUSE_S) or _FIRST_PAUSE_S
        self._tried[named] = now_s + pause_s, pause_s
        return True

    def is_there(self, named: Place, now_s: float) -> None:
        """The connection is where they name it; who is still there when its pause is over was no mistake."""
        until_s, _ = self._tried.get(named, (now_s, 0.0))
        if now_s >= until_s:
            self._tried.pop(named, None)


class PrimaryFinder:
    """Asks the Sentinels of a URL."""

    def __init__(self, url: StorageUrl) -> None:
        """`url`: theirs, with the name of the primary."""
        self._url = url

    async def find(self) -> Place:
        """The server to connect to now. Raises StorageUnavailable."""
        # New connections each time: idle ones to Sentinels would need keepalives.
        async with self._asked() as asked:
            return await self._named(asked)

    async def names(self) -> AsyncGenerator[Place, None]:
        """Whom they name, for ever and as often as `LOOK_S` says, as long as one of them answers."""
        async with self._asked() as asked:
            while True:
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(StorageUnavailable):
                    yield await self._named(asked)

    async def _named(self, asked: redis.asyncio.Sentinel) -> Place:
        try:
            host, port = await asked.discover_master(self._url.service)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(str(error)) from None
        return str(host), int(port)

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[redis.asyncio.Sentinel]:
        asked = sentinels(self._url)
        try:
            yield asked
        finally:
            for each in asked.sentinels:
                await each.aclose()


def finder(url: str) -> tuple[str, PrimaryFinder | None]:
    """How to find the server of a URL.

    Returns:
        A URL with the options for its connections, and what finds it; None where the URL itself names the server.

    Raises:
        ValueError: the URL is none, or a cluster's, where there is more than one server.
    """
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return url, None
    if found.kind is Kind.CLUSTER:
        raise ValueError("a cluster has a connection for each of its primaries")

    return found.at(*found.nodes[0]), PrimaryFinder(found)


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
