"""One multiplexed connection to Redis for the hot calls: requests are pipelined as they come.

What is asked during one turn of the event loop leaves in one vectored write, large payloads uncopied. Answers come back
in order, each to the callback of its request, without a task or a future between.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

import hiredis
import structlog
from redis.asyncio.connection import parse_url

from headrace.store.errors import Unreachable
from headrace.topics.errors import StorageUnavailable

_log = structlog.get_logger("headrace.store")

Reply = Any
Callback = Callable[[Reply], None]
"""Gets the answer: bytes, int, list, None, a `hiredis.ReplyError`, or StorageUnavailable."""
Chunk = bytes | bytearray | memoryview

_PENDING = object()
_KEEP_BUFFER = 4 << 20
"""How large hiredis' own buffer may stay between answers."""
_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 1.0


def encode(arguments: Iterable[str | bytes | int]) -> bytes:
    """A command in RESP."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in arguments]
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        out.append(b"$%d\r\n" % len(part))
        out.append(part)
        out.append(b"\r\n")
    return b"".join(out)


class _Link(asyncio.Protocol):
    """One TCP or unix connection, from its making to its loss."""

    def __init__(self, owner: "Connection") -> None:
        self._owner = owner
        self._reader = hiredis.Reader(notEnoughData=_PENDING)
        self._reader.setmaxbuf(_KEEP_BUFFER)
        self.waiting: deque[Callback] = deque()
        self.out: list[Chunk] = []
        self._flushing = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, chunks: Iterable[Chunk], callback: Callback) -> None:
        self.out.extend(chunks)
        self.waiting.append(callback)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.out and not self.transport.is_closing():
            out, self.out = self.out, []
            self.transport.writelines(out)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        waiting = self.waiting
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _PENDING:
                waiting.popleft()(reply)
        except hiredis.ProtocolError as error:
            _log.error("Redis sent something that is no answer", reason=str(error))
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        waiting, self.waiting = self.waiting, deque()
        self._owner.link_lost(self, exc)
        error = StorageUnavailable("the connection to Redis was lost; whether the last writes happened is not known")
        for callback in waiting:
            callback(error)


class Connection:
    """A connection that comes back by itself.

    While it is away every request is answered with StorageUnavailable at once. What was under way when it broke may or
    may not have happened; nothing is ever sent a second time from here.
    """

    def __init__(self, url: str, prepare: Iterable[bytes] = ()) -> None:
        """Prepare; `open` connects.

        Args:
            url: what redis-py's `from_url` takes: `unix:///PATH`, `redis://...`, `rediss://...`.
            prepare: encoded commands to send first on every new connection, such as SCRIPT LOAD.
        """
        self._target = parse_url(url)
        self._prepare = tuple(prepare)
        self._link: _Link | None = None
        self._closed = False
        self._retry: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect. Raises Unreachable."""
        try:
            self._link = await self._connect()
        except (OSError, hiredis.HiredisError, StorageUnavailable) as error:
            raise Unreachable(f"Redis does not answer: {error}") from None

    async def _connect(self) -> _Link:
        loop = asyncio.get_running_loop()
        target = self._target
        if "path" in target:
            _, link = await loop.create_unix_connection(lambda: _Link(self), target["path"])
        else:
            tls = True if target.get("connection_class") is not None else None
            host, port = target.get("host", "localhost"), target.get("port", 6379)
            _, link = await loop.create_connection(lambda: _Link(self), host, port, ssl=tls)
        commands: list[bytes] = []
        if target.get("password") is not None:
            user = [target["username"]] if target.get("username") else []
            commands.append(encode(["AUTH", *user, target["password"]]))
        if target.get("db"):
            commands.append(encode(["SELECT", target["db"]]))
        for command in (*commands, *self._prepare):
            answer: asyncio.Future[Reply] = loop.create_future()
            link.send([command], answer.set_result)
            reply = await answer
            if isinstance(reply, Exception):
                link.transport.abort()
                raise reply
        return link

    def link_lost(self, link: _Link, reason: Exception | None) -> None:
        """Called by a link as it ends."""
        if link is not self._link:
            return
        self._link = None
        if not self._closed:
            _log.warning("connection to Redis lost", reason=str(reason or "closed by Redis"))
            self._retry = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        delay = _FIRST_RETRY_S
        while not self._closed:
            try:
                self._link = await self._connect()
            except (OSError, hiredis.HiredisError, StorageUnavailable):
                await asyncio.sleep(delay)
                delay = min(2 * delay, _LAST_RETRY_S)
            else:
                _log.info("connection to Redis restored")
                return

    @property
    def connected(self) -> bool:
        """Whether requests can be sent just now."""
        return self._link is not None

    def send(self, chunks: Iterable[Chunk], callback: Callback) -> None:
        """Send one encoded command, given in pieces; `callback` gets its answer."""
        link = self._link
        if link is None:
            callback(StorageUnavailable("no connection to Redis"))
        else:
            link.send(chunks, callback)

    async def call(self, *arguments: str | bytes | int) -> Reply:
        """Send a command and wait for its answer; a `hiredis.ReplyError` is returned, not raised.

        Raises:
            StorageUnavailable: there is no connection, or it was lost before the answer.
        """
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def settle(reply: Reply) -> None:
            if not answer.done():
                answer.set_result(reply)

        self.send([encode(arguments)], settle)
        reply = await answer
        if isinstance(reply, StorageUnavailable):
            raise reply
        return reply

    async def close(self) -> None:
        """Close for good; what waits is answered with StorageUnavailable."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retry
        if self._link is not None:
            self._link.transport.close()
