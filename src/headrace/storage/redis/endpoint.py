"""Parse the URL of a server, find the primary that Sentinels name, and connect."""

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
"""Seconds between queries of Sentinels, which detect a promotion within 1 s."""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0
"""First and last pause before another attempt of a named server."""


class Tries:
    """Limits the attempts of servers that Sentinels name.

    If Sentinels disagree, or their server is down, each attempt returns to the previous server. It costs a connection
    with all its requests.
    """

    def __init__(self) -> None:
        self._tried: dict[Place, tuple[float, float]] = {}
        """End of the pause, and its length."""

    def may(self, named: Place, now_s: float) -> bool:
        """Return whether to try a named server, and begin its next pause if so."""
        until_s, pause_s = self._tried.get(named, (now_s, 0.0))
        if now_s < until_s:
            return False
        pause_s = min(2 * pause_s, _LAST_PAUSE_S) or _FIRST_PAUSE_S
        self._tried[named] = now_s + pause_s, pause_s
        return True

    def is_there(self, named: Place, now_s: float) -> None:
        """Reset the pauses of a server that is still connected after the last one."""
        until_s, _ = self._tried.get(named, (now_s, 0.0))
        if now_s >= until_s:
            self._tried.pop(named, None)


class PrimaryFinder:
    """Queries the Sentinels of a URL."""

    def __init__(self, url: StorageUrl) -> None:
        """Use the URL of Sentinels."""
        self._url = url

    async def find(self) -> Place:
        """Return the current primary. Raises StorageUnavailable."""
        # Idle ones would need keepalives.
        async with self._asked() as asked:
            return await self._named(asked)

    async def names(self) -> AsyncGenerator[Place, None]:
        """Yield the primary every `LOOK_S` while a Sentinel responds."""
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
    """Return a URL with connection options, and a finder if the address may change. Raises ValueError."""
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return url, None
    if found.kind is Kind.CLUSTER:
        raise ValueError("a cluster has a connection for each of its primaries")

    return found.at(*found.nodes[0]), PrimaryFinder(found)


_IDLE_S, _INTERVAL_S, _TRIES = 10, 3, 3


def notice_silence(connected: socket.socket) -> None:
    """Let the kernel end a connection to a silent peer after about 20 s."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_S),
        ("TCP_KEEPINTVL", _INTERVAL_S),
        ("TCP_KEEPCNT", _TRIES),
        # Keepalive does not count while sent data is unacknowledged.
        ("TCP_USER_TIMEOUT", 1000 * (_IDLE_S + _TRIES * _INTERVAL_S)),
    ):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


Protocol = TypeVar("Protocol", bound=asyncio.BaseProtocol)
_UNIX_SEND_BUFFER = 1 << 20


class Endpoint:
    """Address of a URL, and the first commands for it."""

    def __init__(self, url: str) -> None:
        """Parse a URL. Raises ValueError."""
        url, self._finder = finder(url)
        options: dict[str, Any] = dict(parse_url(url))
        self._path: str | None = options.get("path")
        self.place: Place = (options.get("host", "localhost"), options.get("port", 6379))
        """Last known address."""
        self.next: Place | None = None
        """Address for the next attempt."""
        secure = options.pop("connection_class", None) is SSLConnection
        # redis-py parses all certificate options of a rediss:// URL.
        self._tls = SSLConnection(**options).ssl_context.get() if secure else None
        self.greeting: list[tuple[str, ...]] = []
        """Commands to send first."""
        if options.get("password") is not None:
            user = [options["username"]] if options.get("username") else []
            self.greeting.append(("AUTH", *user, options["password"]))
        if options.get("db"):
            self.greeting.append(("SELECT", str(options["db"])))

    @property
    def name(self) -> str:
        """Return the last address for messages: a path, or host and port."""
        host, port = self.place
        return self._path or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")

    @property
    def moves(self) -> bool:
        """Return whether the address may change."""
        return self._finder is not None

    async def names(self) -> AsyncGenerator[Place, None]:
        """Yield the primary's address repeatedly."""
        if self._finder is not None:
            async for place in self._finder.names():
                yield place

    async def connect(self, make: Callable[[], Protocol]) -> Protocol:
        """Connect to the current server. Raises OSError, StorageUnavailable."""
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
    """Configure a new socket. Return whether the server is on this machine."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return False
    if connected.family == socket.AF_UNIX:
        # This saves a sixth of our CPU.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BUFFER)
        return True
    notice_silence(connected)
    peer = transport.get_extra_info("peername")
    return peer is not None and is_loopback(peer[0])
