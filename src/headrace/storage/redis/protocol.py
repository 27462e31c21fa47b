"""One connection to Redis or Valkey: requests out, replies in, in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import hiredis
import structlog

from headrace.aio.tasks import log_unhandled, tell
from headrace.storage.redis.endpoint import set_up
from headrace.topics.errors import StorageUnavailable, StorageUnreachable

# Redis executes commands, writes its append-only file, then sends the replies. So a reply normally proves the write.
# #
# But after a full socket, Redis sends the rest, with all newer replies, before it writes the file (`writeToClient` as
# write handler, `beforeSleep`; not with `appendfsync always`). A kill of Redis then loses acknowledged writes.
# #
# The reply to a request that was sent *after* such a reply proves the write: each turn of Redis's loop begins with the
# file.
STEP = 16 << 10
"""A reply after more than three such steps may be early. Redis sends at most 64 KiB at a time
(NET_MAX_WRITES_PER_EVENT), and sockets hold as much.
"""
ANSWER = 192
"""Bytes added for each reply: a Unix socket holds 277 that were written one by one."""


class UnprovenReplies:
    """Count the bytes that Redis may have had to send before a reply: all since its request.

    A reply counts completely at its end: a request that is sent in its middle waits for it.
    """

    __slots__ = ("_before", "_older", "_weight", "early")

    def __init__(self) -> None:
        self._weight = 0
        """Bytes in this step."""
        self._before = 0
        """Earlier bytes that may belong to an incomplete reply."""
        self._older = 0
        """Number of requests that have waited since before this step."""
        self.early = 0
        """Number of next replies that may be early."""

    def came(self, count: int, waiting: int) -> None:
        """Count received bytes while this many requests wait."""
        self._weight += self._before + count
        self._before += count
        if self._weight >= STEP:
            self.early = waiting if self._weight >= 2 * STEP else self._older
            self._older = waiting
            self._weight = 0

    def answered(self, answers: int, count: int) -> None:
        """Count complete replies; `count` is the size of the last chunk."""
        if answers:
            self._before = count
            self._weight += ANSWER * answers
            self._older = max(0, self._older - answers)
            self.early = max(0, self.early - answers)

    def forget(self) -> None:
        """Reset: no request waits."""
        self._weight = self._before = self._older = self.early = 0


_log = structlog.get_logger("headrace.storage.redis")

Reply = Any
Callback = Callable[[Reply], None]
"""Called with the reply: bytes, int, list, None, `hiredis.ReplyError` or StorageUnavailable."""
Chunk = bytes | bytearray | memoryview

_MISPLACED = frozenset({"MOVED", "CLUSTERDOWN"})
"""Errors of a cluster node for keys of another one."""
_COMMAND = "a command to Redis"
_UNWRITTEN = "MISCONF"
"""Error of Redis after a failed write of its append-only file."""


def encode(arguments: Iterable[str | bytes | int]) -> bytes:
    """Encode a command in RESP."""
    # hiredis's stub requires tuples of one.
    packed: bytes = hiredis.pack_command(cast("tuple[bytes]", tuple(arguments)))
    return packed


class Owner(Protocol):
    """Owner of a link."""

    near: bool
    """Whether the server is on this machine."""

    @property
    def preparing(self) -> bool:
        """Return whether a callback waits."""

    def prepare_flush(self) -> None:
        """Prepare data before a write."""

    def scripts_lost(self, link: "RespProtocol") -> None:
        """Handle NOSCRIPT."""

    def misplaced(self) -> None:
        """Handle a key of another node."""

    def link_lost(self, link: "RespProtocol", reason: Exception | None) -> None:
        """Handle a loss."""


class Read:
    """Callback of a read, which acknowledges nothing."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __call__(self, reply: Reply) -> None:
        """Forward the reply."""
        self._callback(reply)


class InPlace(Read):
    """Callback of a read that accepts views of the buffer."""

    __slots__ = ()


class _Held(NamedTuple):
    callback: Callback
    reply: Reply
    early: bool
    """Whether it may have left before the append-only file was written."""


PING = encode(["PING"])


class RespProtocol(asyncio.BufferedProtocol):
    """One TCP or Unix connection."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._reader = make_reader(self._error)
        self._waiting: deque[Callback] = deque()
        self._out: list[Chunk] = []
        self._flushing = False
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.heard = 0
        """Number of chunks received: detects silent servers."""
        self._backlog = UnprovenReplies()
        self._held: deque[_Held] = deque()
        """Replies that wait for a proof that Redis has written them, and later replies."""
        self._proving = 0
        """Number of held replies that the PING in flight proves; 0: no PING."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket."""
        self.transport = cast("asyncio.Transport", transport)
        self._owner.near = set_up(transport)

    def send(self, chunks: Sequence[Chunk], callback: Callback) -> None:
        """Send an encoded command in pieces."""
        if self.lost.done():
            callback(StorageUnreachable("no connection to Redis"))
            return
        self._waiting.append(callback)
        self._out += chunks
        self.flush_soon()

    def send_several(self, chunks: Sequence[Chunk], callbacks: Sequence[Callback]) -> None:
        """Send encoded commands in pieces; each of `callbacks` gets a reply."""
        if self.lost.done():
            for callback in callbacks:
                callback(StorageUnreachable("no connection to Redis"))
            return
        self._waiting += callbacks
        self._out += chunks
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._owner.prepare_flush()
        self._flushing = False
        if self._owner.preparing:
            self.flush_soon()
        if not self.transport.is_closing():
            out, self._out = self._out, []
            self.transport.writelines(out)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the receive buffer."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Pass complete replies to their callbacks."""
        reader = self._reader
        waiting = self._waiting
        backlog, held = self._backlog, self._held
        reader.received(nbytes)
        self.heard += 1
        backlog.came(nbytes, len(waiting))
        early = backlog.early
        answers = 0
        try:
            while (reply := reader.gets(bool(waiting) and type(waiting[0]) is InPlace)) is not PENDING:
                callback = waiting.popleft()
                answers += 1
                if answers <= early or held:
                    self._hold(callback, reply, answers <= early)
                    continue
                try:
                    callback(reply)
                except Exception:
                    log_unhandled(_COMMAND)
        except hiredis.ProtocolError as error:
            self.reject(f"Redis sent something that is no answer: {error}")
        except IndexError:
            self.reject(f"Redis sent an unexpected reply: {reply!r}")
        if waiting:
            backlog.answered(answers, nbytes)
        else:
            backlog.forget()
        if held and not self._proving:
            self._proving = len(held)
            self.send([PING], self._proved)

    def _hold(self, callback: Callback, reply: Reply, early: bool) -> None:
        """Hold a reply until it is proven. Reads pass, and errors after no held reply."""
        acknowledges = early and not isinstance(reply, hiredis.ReplyError)
        if isinstance(callback, Read) or callback == self._proved or not (acknowledges or self._held):
            tell(callback, reply, _COMMAND)
        else:
            self._held.append(_Held(callback, reply, acknowledges))

    def _proved(self, reply: Reply) -> None:
        proven, self._proving = self._proving, 0
        if isinstance(reply, StorageUnavailable):
            return
        unwritten = isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_UNWRITTEN)
        held = self._held
        while held and (proven > 0 or not held[0].early):
            proven -= 1
            first = held.popleft()
            fenced_reason = unwritten and first.early
            answer = StorageUnavailable(f"Redis may not have kept it: {reply}") if fenced_reason else first.reply
            tell(first.callback, answer, _COMMAND)

    def reject(self, reason: str) -> None:
        """Abort the connection."""
        self.transport.abort()
        _log.error("connection to Redis closed", reason=reason)

    def _error(self, text: str) -> hiredis.ReplyError:
        """Called for errors only, so that not every reply is checked."""
        word = text.partition(" ")[0]
        if word == "NOSCRIPT":
            self._owner.scripts_lost(self)
        elif word == "READONLY" and not self.transport.is_closing():
            # A promoted server may have this address.
            self.reject("it has become a replica")
        elif word in _MISPLACED:
            self._owner.misplaced()
        return hiredis.ReplyError(text)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all requests in flight."""
        self.lost.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        try:
            self._owner.link_lost(self, exc)
        except Exception:
            _log.exception("handling of a lost connection failed")
        error = StorageUnavailable("the connection to Redis was lost; whether the last writes happened is not known")
        held, self._held = self._held, deque()
        for callback in (*(each.callback for each in held), *waiting):
            tell(callback, error, _COMMAND)

    async def ask(self, commands: Iterable[bytes]) -> list[Reply]:
        """Send commands, and return their replies. Raises the first error."""
        answers: list[asyncio.Future[Reply]] = []
        for command in commands:
            answer: asyncio.Future[Reply] = self._loop.create_future()
            self.send([command], settler(answer))
            answers.append(answer)
        replies = []
        for answer in answers:
            reply = await answer
            if isinstance(reply, Exception):
                raise reply
            replies.append(reply)
        return replies


def settler(answer: "asyncio.Future[Reply]") -> Callback:
    """Return a callback that completes a future."""

    def settle(reply: Reply) -> None:
        # It may have been canceled.
        if not answer.done():
            answer.set_result(reply)

    return settle


PENDING: Final = object()
"""Result for an incomplete reply."""
MALFORMED: Final = hiredis.ProtocolError
"""Error for invalid RESP."""
_CHUNK = 1 << 20
_SCRATCH = 256 << 10
_KEEP_BUFFER = 4 << 20
"""Maximum size of hiredis's own buffer between replies."""

MakeError = Callable[[str], Exception]
"""Creates the reply for an error text."""


class Reader(Protocol):
    """Parses bytes into replies: bytes, int, list, None, or the result of `MakeError`."""

    def room(self) -> memoryview:
        """Return the buffer. Release it before `gets`."""

    def received(self, count: int, /) -> None:
        """Parse bytes of the buffer."""

    def gets(self, views: bool, /) -> Any:
        """Return the next reply, or PENDING. Raises `hiredis.ProtocolError`.

        With `views`, values from 2 KiB may be writable views, which the caller owns. Each keeps its chunk in memory.
        """


class CopyingReader:
    """Copies all values."""

    def __init__(self, error: MakeError) -> None:
        self._reader = hiredis.Reader(notEnoughData=PENDING, replyError=error)
        self._reader.setmaxbuf(_KEEP_BUFFER)
        self._scratch = memoryview(bytearray(_SCRATCH))

    def room(self) -> memoryview:
        """Return the buffer."""
        return self._scratch

    def received(self, count: int, /) -> None:
        """Parse bytes of the buffer."""
        self._reader.feed(cast("bytes", self._scratch[:count]))

    def gets(self, _views: bool, /) -> Any:
        """Return the next reply, or PENDING."""
        return self._reader.gets()


try:
    import headrace.storage.redis._reader as _compiled  # mypy finds the stub only in this form
except ImportError:  # no compiler at the installation
    _compiled = None  # type: ignore[assignment]


def make_reader(error: MakeError) -> Reader:
    """Return a reader, in C if it was compiled."""
    return CopyingReader(error) if _compiled is None else _compiled.Reader(PENDING, error, MALFORMED, _CHUNK)
