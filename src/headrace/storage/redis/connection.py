"""One multiplexed connection to Redis for the hot path, with pipelined requests.

Requests of one turn of the event loop leave in one vectored write, without copies of large payloads. Replies go
directly to the callbacks, in order.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import Context
from typing import NamedTuple, Self

import hiredis
import msgspec
import structlog

from headrace.aio.retry import Backoff
from headrace.aio.tasks import end
from headrace.storage.errors import REFUSED_WRITES, unusable, write_refusal
from headrace.storage.redis.endpoint import Endpoint, Tries
from headrace.storage.redis.protocol import PING, Callback, Chunk, InPlace, Read, Reply, RespProtocol, encode, settler
from headrace.topics.errors import StorageUnavailable, StorageUnreachable

_LINE = re.compile(rb"^(role|master_replid|connected_slaves):([^\r\n]*)", re.MULTILINE)


class ReplicationInfo(msgspec.Struct, frozen=True):
    """Replication state of a server."""

    primary: bool = True
    """Whether it accepts writes."""
    reign: str = ""
    """Replication id, which each promotion changes. Empty if unknown."""
    replicas: int = 0
    """Number of attached replicas, in any state."""

    @classmethod
    def read(cls, info: bytes | str) -> Self:
        """Parse INFO, with the defaults for missing lines."""
        info = info if isinstance(info, bytes) else info.encode()
        found = {name: value.decode(errors="replace") for name, value in _LINE.findall(info)}
        replicas = found.get(b"connected_slaves", "")
        return cls(
            primary=found.get(b"role", "master") == "master",
            reign=found.get(b"master_replid", ""),
            replicas=int(replicas) if replicas.isdecimal() else 0,
        )

    def same_reign(self, before: "ReplicationInfo | None") -> bool:
        """Return whether it has been the same primary without interruption."""
        return before is not None and self.primary and bool(self.reign) and self.reign == before.reign


_log = structlog.get_logger("headrace.storage.redis")

_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 1.0
_GREETING_S = 10.0
"""Seconds for Redis to accept a connection and to reply to the first commands."""
_DRAIN_S = 1.0
ANSWER_S = 5.0
"""Seconds of silence after which another server may have taken over."""
_REDIRECTED = ("MOVED ", "ASK ")
_WRITE = ("EVAL", "#!lua\nreturn 1", 0)
"""A write without an effect and without a key, which might be another node's."""
_WANTS_COPIES = b"min_slaves_good_slaves:"
"""In INFO if `min-replicas-to-write` is above 0."""
_MEMORY = re.compile(rb"^(used_memory|mem_not_counted_for_evict|maxmemory):(\d+)", re.MULTILINE)


class Readiness(NamedTuple):
    """What is wrong with a Redis, or with some primaries of a cluster."""

    problems: tuple[str, ...] = ()
    writable: bool = True
    """Whether at least one primary takes writes."""


def _may_refuse(facts: Reply) -> bool:
    """Return whether a server may refuse writes and still answer PING, by its INFO."""
    if not isinstance(facts, bytes):
        return False
    memory = {name: int(value) for name, value in _MEMORY.findall(facts)}
    most = memory.get(b"maxmemory", 0)
    counted = memory.get(b"used_memory", 0) - memory.get(b"mem_not_counted_for_evict", 0)
    return _WANTS_COPIES in facts or 0 < most < counted


class Call(NamedTuple):
    """A command that may be repeated on another node."""

    arguments: tuple[str | bytes | int, ...]
    in_place: bool
    reads: bool


def _ignore(_reply: Reply) -> None:
    """No caller waits for this reply."""


def _nothing() -> None:
    """Ignore redirections outside a cluster."""


_ASKING = encode(["ASKING"])
_INFO = encode(["INFO", "replication"])


class Connection:
    """A connection that reconnects.

    While it is down, requests fail at once with StorageUnreachable. Requests in flight at a loss may have been
    executed, and are never repeated. After SCRIPT FLUSH, new requests also fail until the scripts are loaded, so that
    none overtakes a failed one.
    """

    def __init__(
        self,
        url: str,
        prepare: Iterable[bytes] = (),
        *,
        standing: bool = False,
        follows: "Connection | None" = None,
    ) -> None:
        """Prepare; `open` connects.

        The URL is of a server (`unix:///PATH`, `redis://...`, `rediss://...`) or of Sentinels. `prepare` (SCRIPT LOAD)
        is sent to new connections and after lost scripts. `standing` queries the replication state, as is always done
        with Sentinels. `follows` is a connection of the same URL, which determines the primary instead of Sentinels.

        Raises:
            ValueError: the URL is invalid.
        """
        self.url = url
        self._follows = follows
        self._target = Endpoint(url)
        self._prepare = tuple(prepare)
        self._looks = standing or self._target.moves
        self._link: RespProtocol | None = None
        self._loading: RespProtocol | None = None
        """Link that loads the scripts again."""
        self._preparing: list[Callable[[], None]] = []
        self._closed = False
        self._repair: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._usable = asyncio.Event()
        self.on_lost: list[Callable[[Connection], None]] = []
        """Called with the lost connection, before its requests fail."""
        self.on_restored: list[Callable[[], None]] = []
        """Called after a reconnect."""
        self.on_misplaced: Callable[[], None] = _nothing
        """Called when a cluster node does not serve the keys of a request."""
        self.redirected: Callable[[str, Call], Awaitable[Reply]] | None = None
        """Repeats a redirected command on the other node; None: redirections are replies."""
        self.patience_s = ANSWER_S if self._target.moves else None
        """Seconds of silence after a PING until the connection is given up; None: unlimited."""
        self.near = False
        """Whether the server is on this machine."""
        self.made = 0
        """Number of connections so far, raised before the first request of each."""
        self.standing: ReplicationInfo | None = None
        """Replication state when the connection was made, if queried."""

    @property
    def place(self) -> tuple[str, int]:
        """Return host and port of the last server."""
        return self._target.place

    def give_up(self, reason: str) -> None:
        """Leave the server and reconnect."""
        if self._link is not None:
            self._link.reject(reason)

    def renew(self) -> None:
        """Replace the connection silently."""
        if self._link is not None:
            self._link.transport.abort()

    def follow(self) -> None:
        """Leave the server when the Sentinels name another one.

        In a manual failover, the old primary continues for ten seconds before a Sentinel demotes it. Its writes in this
        time are lost.
        """
        if self._target.moves:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="sentinels")

    async def _follow(self) -> None:
        loop, tries = asyncio.get_running_loop(), Tries()
        async with contextlib.aclosing(self._target.names()) as names:
            async for named in names:
                if named == self._target.place:
                    if self.connected:
                        tries.is_there(named, loop.time())
                elif self.connected and tries.may(named, loop.time()):
                    self._target.next = named
                    self.give_up("the Sentinels name another primary, {}:{}".format(*named))

    def at(self, _key: str | bytes) -> Self:
        """Return this connection."""
        return self

    def misplaced(self) -> None:
        """Handle a key of another node."""
        self.on_misplaced()

    async def open(self) -> None:
        """Connect. Raises Unreachable."""
        # A new context: the connection belongs to no request.
        connecting = asyncio.get_running_loop().create_task(self._connect(), context=Context())
        try:
            self._set_link(await connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_abandon)
            raise
        except (OSError, hiredis.HiredisError, StorageUnavailable) as error:
            raise unusable(error, self.url) from None

    def connect_soon(self) -> None:
        """Connect in the background."""
        self._repair = asyncio.get_running_loop().create_task(self._reconnect())

    async def _connect(self) -> RespProtocol:
        follows = self._follows if self._target.moves else None
        way = 0
        async with asyncio.timeout(_GREETING_S):
            if follows is not None:
                await follows.ready()
                self._target.next, way = follows.place, follows.made
            link = await self._target.connect(lambda: RespProtocol(self))
            looks = [_INFO] if self._looks else []
            told = await _ask_or_abort(link, (*map(encode, self._target.greeting), *self._prepare, *looks))
        if follows is not None and (follows.made != way or not follows.connected):
            link.transport.abort()
            raise StorageUnavailable("the primary may be another one by now")
        if link.lost.done():
            raise StorageUnavailable("Redis closed the connection")
        self.standing = ReplicationInfo.read(told[-1]) if looks else None
        if self._target.moves and not (self.standing and self.standing.primary):
            link.transport.abort()
            raise StorageUnavailable("the Sentinels name a replica as the primary: have they missed a failover?")
        self.made += 1
        return link

    def link_lost(self, link: RespProtocol, reason: Exception | None) -> None:
        """Handle the end of a link."""
        if link is self._loading:
            self._loading = None  # the task that loads the scripts reconnects
        elif link is self._link:
            self._set_link(None)
            if not self._closed:
                self.connect_soon()
        else:
            return
        for listener in self.on_lost:
            listener(self)
        if not self._closed:
            _log.warning("connection to Redis lost", server=self._target.name, reason=str(reason or "closed by Redis"))

    async def _reconnect(self) -> None:
        backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
        told = ""
        while not self._closed:
            try:
                self._set_link(await self._connect())
            except (OSError, hiredis.HiredisError, StorageUnavailable) as error:
                reason = str(error) or type(error).__name__
                if reason != told:
                    told = reason
                    _log.warning("cannot connect to Redis, trying again", server=self._target.name, reason=reason)
                await backoff.pause()
            else:
                for listener in self.on_restored:
                    listener()
                _log.info("connection to Redis restored", server=self._target.name)
                return

    def scripts_lost(self, link: RespProtocol) -> None:
        """Load the scripts again."""
        if link is self._link:
            self._set_link(None)
            self._loading = link
            self._repair = asyncio.get_running_loop().create_task(self._load_again(link))

    async def _load_again(self, link: RespProtocol) -> None:
        _log.warning("Redis has lost its scripts (SCRIPT FLUSH?): loading them again")
        try:
            async with asyncio.timeout(_GREETING_S):
                # Each request in flight gets its reply before.
                await _ask_or_abort(link, self._prepare)
        except (OSError, hiredis.HiredisError, StorageUnavailable):
            await self._reconnect()
        else:
            if link.lost.done():
                await self._reconnect()
            else:
                self._loading = None
                self._set_link(link)

    def _set_link(self, link: RespProtocol | None) -> None:
        self._link = link
        if link is None:
            self._usable.clear()
        else:
            self._usable.set()

    async def ready(self) -> None:
        """Wait until requests can be sent. Raises StorageUnavailable after `close`."""
        await self._usable.wait()
        if self._closed:
            raise StorageUnavailable("the storage is closed")

    def before_flush(self, prepare: Callable[[], None]) -> None:
        """Run `prepare` at the end of this turn of the event loop, for the same write."""
        if not self._preparing:
            if self._link is not None:
                self._link.flush_soon()
            else:
                asyncio.get_running_loop().call_soon(self.prepare_flush)
        if prepare not in self._preparing:
            self._preparing.append(prepare)

    def prepare_flush(self) -> None:
        """Run the prepared callbacks."""
        preparing, self._preparing = self._preparing, []
        for prepare in preparing:
            prepare()

    @property
    def preparing(self) -> bool:
        """Return whether a callback waits."""
        return bool(self._preparing)

    @property
    def connected(self) -> bool:
        """Return whether requests can be sent now, and the link is not closing."""
        return self._link is not None and not self._link.transport.is_closing()

    def send(self, chunks: Sequence[Chunk], callback: Callback) -> None:
        """Send an encoded command in pieces."""
        link = self._link
        if link is None:
            callback(StorageUnreachable("no connection to Redis"))
        else:
            link.send(chunks, callback)

    def send_several(self, chunks: Sequence[Chunk], callbacks: Sequence[Callback]) -> None:
        """Send encoded commands in pieces; each of `callbacks` gets a reply."""
        link = self._link
        if link is None:
            for callback in callbacks:
                callback(StorageUnreachable("no connection to Redis"))
        else:
            link.send_several(chunks, callbacks)

    async def call(self, *arguments: str | bytes | int, in_place: bool = False, reads: bool = False) -> Reply:
        """Send a command and return its reply, which may be a `hiredis.ReplyError`.

        Large values `in_place` may be writable views of the receive buffer. `reads` marks a read, whose reply
        acknowledges nothing.

        Raises:
            StorageUnavailable: the connection is down, or was lost before the reply.
        """
        call = Call(arguments, in_place, reads)
        reply = await self.ask(call)
        if self.redirected is not None and self.is_redirection(reply):
            return await self.redirected(str(reply), call)
        return reply

    async def ask(self, call: Call, *, asking: bool = False) -> Reply:
        """As `call`, but do not follow redirections.

        `asking` sends ASKING first: its slot is being moved to this node.
        """
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        settle = settler(answer)
        callback = InPlace(settle) if call.in_place else Read(settle) if call.reads else settle
        if asking:
            self.send_several([_ASKING, encode(call.arguments)], [_ignore, callback])
        else:
            self.send([encode(call.arguments)], callback)
        reply = await answer
        if isinstance(reply, StorageUnavailable):
            raise reply
        return reply

    @staticmethod
    def is_redirection(reply: Reply) -> bool:
        """Return whether a reply redirects to another node."""
        return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_REDIRECTED)

    async def ping(self) -> Reply:
        """Send PING. Raises StorageUnavailable, also after silence.

        A hanging server keeps its connections, and might execute their requests long after a failover.
        """
        asked = asyncio.ensure_future(self.call("PING"))
        try:
            while not asked.done():
                link = self._link
                heard = 0 if link is None else link.heard
                await asyncio.wait([asked], timeout=self.patience_s)
                if link is not None and link is self._link and link.heard == heard and not asked.done():
                    link.reject("it does not answer")
            return await asked
        finally:
            asked.cancel()

    async def readiness(self, within_s: float) -> Readiness:
        """See `storage.redis.shards.Shards`."""
        try:
            async with asyncio.timeout(within_s):
                told = await self.ping()
                if not isinstance(told, hiredis.ReplyError):
                    # During a manual failover, a write would block, and later reads too.
                    facts = await self.call("INFO", "replication", "memory", reads=True)
                    if not _may_refuse(facts):
                        return Readiness()
                    told = await self.call(*_WRITE, reads=True)
                    if not str(told).startswith(REFUSED_WRITES):
                        return Readiness()
        except TimeoutError:
            raise StorageUnavailable(f"Redis did not answer within {within_s:.0f} s") from None
        refusal = write_refusal(str(told))
        if refusal is None:
            raise StorageUnavailable(f"Redis refuses requests: {told}")
        return Readiness((refusal,), writable=False)

    async def close(self) -> None:
        """Close after the replies of all requests, or 1 s."""
        self._closed, self._loading = True, None
        if self._following is not None:
            await end(self._following)
        if self._repair is not None:
            self._repair.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repair
        link, self._link = self._link, None
        # Wakes waiting tasks.
        self._usable.set()
        if link is None:
            return
        with contextlib.suppress(OSError, hiredis.HiredisError, StorageUnavailable):
            async with asyncio.timeout(_DRAIN_S):
                await link.ask([PING])
        link.transport.abort()
        await link.lost


def _abandon(connecting: asyncio.Task[RespProtocol]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().transport.abort()


async def _ask_or_abort(link: RespProtocol, commands: Iterable[bytes]) -> list[Reply]:
    try:
        return await link.ask(commands)
    except BaseException:
        link.transport.abort()
        raise
