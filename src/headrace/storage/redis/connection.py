"""One multiplexed connection to Redis for the hot calls: requests are pipelined as they come.

What is asked during one turn of the event loop leaves in one vectored write, large payloads uncopied. Answers come back
in order, each to the callback of its request, without a task or a future between.
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
from headrace.storage.errors import unusable
from headrace.storage.redis.endpoint import Endpoint, Tries
from headrace.storage.redis.protocol import PING, Callback, Chunk, InPlace, Read, Reply, RespProtocol, encode, settler
from headrace.topics.errors import StorageUnavailable, StorageUnreachable

_LINE = re.compile(rb"^(role|master_replid|connected_slaves):([^\r\n]*)", re.MULTILINE)


class ReplicationInfo(msgspec.Struct, frozen=True):
    """Of a server, at the moment that it was asked."""

    primary: bool = True
    """Whether it takes writes."""
    reign: str = ""
    """Its replication id: another one for each promotion of each server; empty where it does not tell."""
    replicas: int = 0
    """How many are attached, in whatever state."""

    @classmethod
    def read(cls, info: bytes | str) -> Self:
        """What the text says; what it leaves out is as above."""
        info = info if isinstance(info, bytes) else info.encode()
        found = {name: value.decode(errors="replace") for name, value in _LINE.findall(info)}
        replicas = found.get(b"connected_slaves", "")
        return cls(
            primary=found.get(b"role", "master") == "master",
            reign=found.get(b"master_replid", ""),
            replicas=int(replicas) if replicas.isdecimal() else 0,
        )

    def same_reign(self, before: "ReplicationInfo | None") -> bool:
        """Whether it is the same primary as before, and has been it all the time."""
        return before is not None and self.primary and bool(self.reign) and self.reign == before.reign


_log = structlog.get_logger("headrace.storage.redis")

_FIRST_RETRY_S, _LAST_RETRY_S = 0.01, 1.0
_GREETING_S = 10.0
"""How long Redis may take to accept a connection and to answer what is sent first."""
_DRAIN_S = 1.0
ANSWER_S = 5.0
"""How long a server may be silent where another one may have taken its place."""
_REDIRECTED = ("MOVED ", "ASK ")
_IS_READ = "MISCONF "
"""What a server answers to all but reads. What else it may answer to PING, such as LOADING, it answers to reads too."""
_WRITE = ("EVAL", "#!lua flags=allow-oom\nreturn 1", 0)
"""What may write is refused, as a write would be, whatever it does; it needs no key, which may be another node's."""
_WANTS_COPIES = b"min_slaves_good_slaves:"
"""Where INFO says this, `min-replicas-to-write` is above 0."""
_UNCOPIED = "NOREPLICAS "
"""What a server answers to writes alone while it has fewer replicas than `min-replicas-to-write`."""


class Call(NamedTuple):
    """A command that was asked, for whoever has to ask it elsewhere."""

    arguments: tuple[str | bytes | int, ...]
    in_place: bool
    reads: bool


def _ignore(_reply: Reply) -> None:
    """Nobody waits for this answer."""


def _nothing() -> None:
    """A server that is no cluster's has no keys elsewhere."""


_ASKING = encode(["ASKING"])
_INFO = encode(["INFO", "replication"])


class Connection:
    """A connection that comes back by itself.

    While it is away every request is answered with StorageUnreachable at once. What was under way when it broke may or
    may not have happened; nothing is ever sent a second time from here. When Redis forgets the scripts (SCRIPT FLUSH)
    new requests are refused likewise until it has them again, so that none overtakes one that found them missing.
    """

    def __init__(
        self,
        url: str,
        prepare: Iterable[bytes] = (),
        *,
        standing: bool = False,
        beside: "Connection | None" = None,
    ) -> None:
        """Prepare; `open` connects.

        Args:
            url: of one server, `unix:///PATH`, `redis://...`, `rediss://...`; or of Sentinels, `redis+sentinel://...`,
                which are asked for the primary each time.
            prepare: encoded commands to send first on every new connection and when scripts are lost: SCRIPT LOAD.
            standing: ask what each server is among others; of one that Sentinels name it is asked always.
            beside: another one of the same URL: Sentinels are not asked, since this one goes where that one is.

        Raises:
            ValueError: the URL is none of those.
        """
        self.url = url
        self._beside = beside
        self._target = Endpoint(url)
        self._prepare = tuple(prepare)
        self._looks = standing or self._target.moves
        self._link: RespProtocol | None = None
        self._loading: RespProtocol | None = None
        """What the scripts are being loaded again over."""
        self._preparing: list[Callable[[], None]] = []
        self._closed = False
        self._repair: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._usable = asyncio.Event()
        self.on_lost: list[Callable[[Connection], None]] = []
        """Called with the connection when it is lost, before any request under way is told."""
        self.on_restored: list[Callable[[], None]] = []
        """Called when there is another one."""
        self.on_misplaced: Callable[[], None] = _nothing
        """Called when this turns out to be a node of a cluster that does not serve what it was asked for."""
        self.redirected: Callable[[str, Call], Awaitable[Reply]] | None = None
        """Asks again where a node of a cluster says that a key is, given its words; None: that is an answer."""
        self.patience_s = ANSWER_S if self._target.moves else None
        """How long a PING waits for any word before the connection is given up; None: for ever."""
        self.near = False
        """Whether the server is on this machine."""
        self.made = 0
        """How many connections there have been; raised before the first request of each."""
        self.standing: ReplicationInfo | None = None
        """What the server was when the connection was made, where it was asked."""

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the server that was connected to last."""
        return self._target.place

    def give_up(self, reason: str) -> None:
        """Leave the server; another connection is made."""
        if self._link is not None:
            self._link.reject(reason)

    def renew(self) -> None:
        """Have another connection made in place of this one, without a word."""
        if self._link is not None:
            self._link.transport.abort()

    def follow(self) -> None:
        """Leave the server from now on as soon as the Sentinels name another; nothing where there are none.

        In a failover in order the old primary goes on for ten seconds, until a Sentinel makes it a replica: whatever it
        acknowledges meanwhile is lost.
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
        """The connection to the server that has a key: this one."""
        return self

    def misplaced(self) -> None:
        """Called by a link that was told that a key is elsewhere."""
        self.on_misplaced()

    async def open(self) -> None:
        """Connect. Raises Unreachable."""
        # Not in the context of whoever needs it first: what becomes of the connection is nobody's request.
        connecting = asyncio.get_running_loop().create_task(self._connect(), context=Context())
        try:
            self._set_link(await connecting)
        except asyncio.CancelledError:
            # It may have ended just before, and then is nobody's.
            connecting.add_done_callback(_abandon)
            raise
        except (OSError, hiredis.HiredisError, StorageUnavailable) as error:
            raise unusable(error, self.url) from None

    def connect_soon(self) -> None:
        """Connect in the background, as after a loss."""
        self._repair = asyncio.get_running_loop().create_task(self._reconnect())

    async def _connect(self) -> RespProtocol:
        beside = self._beside if self._target.moves else None
        way = 0
        async with asyncio.timeout(_GREETING_S):
            if beside is not None:
                await beside.ready()
                self._target.next, way = beside.place, beside.made
            link = await self._target.connect(lambda: RespProtocol(self))
            looks = [_INFO] if self._looks else []
            told = await _ask_or_abort(link, (*map(encode, self._target.greeting), *self._prepare, *looks))
        if beside is not None and (beside.made != way or not beside.connected):
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
        """Called by a link as it ends."""
        if link is self._loading:
            self._loading = None  # whoever loads the scripts again connects again
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
        """Called by a link that was answered NOSCRIPT."""
        if link is self._link:
            self._set_link(None)
            self._loading = link
            self._repair = asyncio.get_running_loop().create_task(self._load_again(link))

    async def _load_again(self, link: RespProtocol) -> None:
        _log.warning("Redis has lost its scripts (SCRIPT FLUSH?): loading them again")
        try:
            async with asyncio.timeout(_GREETING_S):
                # Behind everything under way: each of those gets its own answer, done or NOSCRIPT, before this ends.
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
        """Return when requests can be sent; raises StorageUnavailable once it is closed."""
        await self._usable.wait()
        if self._closed:
            raise StorageUnavailable("the storage is closed")

    def before_flush(self, prepare: Callable[[], None]) -> None:
        """Run `prepare` at the end of this turn of the loop: what it sends leaves in the same write as the rest."""
        if not self._preparing:
            if self._link is not None:
                self._link.flush_soon()
            else:
                asyncio.get_running_loop().call_soon(self.prepare_flush)
        if prepare not in self._preparing:
            self._preparing.append(prepare)

    def prepare_flush(self) -> None:
        """Called by a link before it writes."""
        preparing, self._preparing = self._preparing, []
        for prepare in preparing:
            prepare()

    @property
    def preparing(self) -> bool:
        """Whether somebody waits for the end of a turn."""
        return bool(self._preparing)

    @property
    def connected(self) -> bool:
        """Whether requests can be sent just now: not over a link that was given up and is lost in a moment, either."""
        return self._link is not None and not self._link.transport.is_closing()

    def send(self, chunks: Sequence[Chunk], callback: Callback) -> None:
        """Send one encoded command, given in pieces; `callback` gets its answer."""
        link = self._link
        if link is None:
            callback(StorageUnreachable("no connection to Redis"))
        else:
            link.send(chunks, callback)

    def send_several(self, chunks: Sequence[Chunk], callbacks: Sequence[Callback]) -> None:
        """Send encoded commands, given in pieces; each of `callbacks` gets one answer, in order."""
        link = self._link
        if link is None:
            for callback in callbacks:
                callback(StorageUnreachable("no connection to Redis"))
        else:
            link.send_several(chunks, callbacks)

    async def call(self, *arguments: str | bytes | int, in_place: bool = False, reads: bool = False) -> Reply:
        """Send a command and wait for its answer; a `hiredis.ReplyError` is returned, not raised.

        Args:
            arguments: of the command.
            in_place: large values in the answer may come as writable views of the memory that they were received in,
                the caller's own; else all are bytes. It only reads.
            reads: it only reads, so that its answer acknowledges nothing.

        Raises:
            StorageUnavailable: there is no connection, or it was lost before the answer.
        """
        call = Call(arguments, in_place, reads)
        reply = await self.ask(call)
        if self.redirected is not None and self.is_redirection(reply):
            return await self.redirected(str(reply), call)
        return reply

    async def ask(self, call: Call, *, asking: bool = False) -> Reply:
        """The same, but for redirections, which are answers here.

        Args:
            call: the command.
            asking: its keys are on their way to this node of a cluster (ASKING).

        Raises:
            StorageUnavailable: there is no connection, or it was lost before the answer.
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
        """Whether a node of a cluster says that another one has the key."""
        return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_REDIRECTED)

    async def ping(self) -> Reply:
        """The answer. Raises StorageUnavailable when the connection is down, or is given up since the server is silent.

        A server that hangs keeps its connections, and what lies in them it may answer long after another was promoted.
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

    async def unanswered(self, within_s: float) -> list[str]:
        """See `storage.redis.shards.Shards`: one that takes no writes is told of, one that is not read is away."""
        try:
            async with asyncio.timeout(within_s):
                told = await self.ping()
                if not isinstance(told, hiredis.ReplyError):
                    # While writes are paused, as in a failover in order, what may write waits, and reads behind it.
                    facts = await self.call("INFO", "replication", reads=True)
                    if not isinstance(facts, bytes) or _WANTS_COPIES not in facts:
                        return []
                    told = await self.call(*_WRITE, reads=True)
                    if not str(told).startswith(_UNCOPIED):
                        return []
        except TimeoutError:
            raise StorageUnavailable(f"Redis did not answer within {within_s:.0f} s") from None
        refusal = f"Redis refuses requests: {told}"
        if not str(told).startswith((_IS_READ, _UNCOPIED)):
            raise StorageUnavailable(refusal)
        return [refusal]

    async def close(self) -> None:
        """Close for good, after what was sent has been answered or a second has passed."""
        self._closed, self._loading = True, None
        if self._following is not None:
            await end(self._following)
        if self._repair is not None:
            self._repair.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repair
        link, self._link = self._link, None
        # Whoever waits for it is told.
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
