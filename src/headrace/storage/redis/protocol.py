"""One connection to Redis or Valkey, from its making to its loss: requests out, answers in, in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import hiredis
import structlog

from headrace.aio.tasks import log_unhandled, tell
from headrace.storage.redis.endpoint import set_up
from headrace.topics.errors import StorageUnavailable, StorageUnreachable

# Which answers of Redis tell that its append-only file has the write.
#
# Redis and Valkey execute commands, write their file and then send the answers, so that an answer tells that the
# write
# is there. But where earlier answers did not fit into the socket, what is left goes as soon as there is room,
# together
# with what was answered meanwhile, and that is before the file is written (`writeToClient` as the handler of a
# writable
# socket, `beforeSleep`; only `appendfsync always` waits). Whoever kills Redis then takes back what was answered.
#
# Such a write is known to be in the file once something that was sent *after* its answer is answered: that was
# executed
# in a later turn of Redis' loop, and each turn begins with the file.
STEP = 16 << 10
"""An answer that comes behind more than three such steps may have left early: Redis sends at most 64 KiB at a time
(NET_MAX_WRITES_PER_EVENT), and sockets take as much."""
ANSWER = 192
"""Bytes counted for each answer beside its own: a unix socket has room for 277 that were written one by one."""


class UnprovenReplies:
    """Counts what Redis may still have had to send when it answered a request: all that came since that was sent.

    An answer counts whole when its end comes: a request that is sent in its middle waits behind it all the same.
    """

    __slots__ = ("_before", "_older", "_weight", "early")

    def __init__(self) -> None:
        self._weight = 0
        """What has come in this step."""
        self._before = 0
        """How much of what came before may belong to an answer that is not whole yet."""
        self._older = 0
        """So many of those that wait have waited since the step before this one."""
        self.early = 0
        """So many of the next answers may have left early."""

    def came(self, count: int, waiting: int) -> None:
        """Bytes have come, and are about to be read, while so many requests wait."""
        self._weight += self._before + count
        self._before += count
        if self._weight >= STEP:
            self.early = waiting if self._weight >= 2 * STEP else self._older
            self._older = waiting
            self._weight = 0

    def answered(self, answers: int, count: int) -> None:
        """So many answers were whole; `count`: the bytes that came last."""
        if answers:
            self._before = count
            self._weight += ANSWER * answers
            self._older = max(0, self._older - answers)
            self.early = max(0, self.early - answers)

    def forget(self) -> None:
        """Nobody waits: whatever is sent from now on has nothing before it."""
        self._weight = self._before = self._older = self.early = 0


_log = structlog.get_logger("headrace.storage.redis")

Reply = Any
Callback = Callable[[Reply], None]
"""Gets the answer: bytes, int, list, None, a `hiredis.ReplyError`, or StorageUnavailable."""
Chunk = bytes | bytearray | memoryview

_MISPLACED = frozenset({"MOVED", "CLUSTERDOWN"})
"""What a node of a cluster says of keys that it does not serve."""
_COMMAND = "a command to Redis"
_UNWRITTEN = "MISCONF"
"""What Redis says to a PING once a write of its append-only file has failed."""


def encode(arguments: Iterable[str | bytes | int]) -> bytes:
    """A command in RESP."""
    # Its stub tells of tuples of one.
    packed: bytes = hiredis.pack_command(cast("tuple[bytes]", tuple(arguments)))
    return packed


class Owner(Protocol):
    """Whoever connects again."""

    near: bool
    """Whether the server is on this machine."""

    @property
    def preparing(self) -> bool:
        """Whether somebody waits for the end of a turn."""

    def prepare_flush(self) -> None:
        """Called before a link writes."""

    def scripts_lost(self, link: "RespProtocol") -> None:
        """A link was answered NOSCRIPT."""

    def misplaced(self) -> None:
        """A link was told that a key is elsewhere."""

    def link_lost(self, link: "RespProtocol", reason: Exception | None) -> None:
        """A link was lost."""


class Read:
    """The callback of a request that only reads: its answer acknowledges nothing."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __call__(self, reply: Reply) -> None:
        """Hand it on."""
        self._callback(reply)


class InPlace(Read):
    """One whose answer need not be copied out of the memory it is received in, either."""

    __slots__ = ()


class _Held(NamedTuple):
    """An answer that nobody has been told yet."""

    callback: Callback
    reply: Reply
    early: bool
    """Whether it may have left before the append-only file was written."""


PING = encode(["PING"])


class RespProtocol(asyncio.BufferedProtocol):
    """One TCP or unix connection, from its making to its loss."""

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
        """How often bytes have come: tells a server that is silent from one that answers."""
        self._backlog = UnprovenReplies()
        self._held: deque[_Held] = deque()
        """Answers that wait until it is known that Redis has written what they acknowledge, and those behind them."""
        self._proving = 0
        """How many of them a PING under way was sent after; 0: there is none."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection."""
        self.transport = cast("asyncio.Transport", transport)
        self._owner.near = set_up(transport)

    def send(self, chunks: Sequence[Chunk], callback: Callback) -> None:
        """Send one encoded command, given in pieces; `callback` gets its answer."""
        if self.lost.done():
            callback(StorageUnreachable("no connection to Redis"))
            return
        self._waiting.append(callback)
        self._out += chunks
        self.flush_soon()

    def send_several(self, chunks: Sequence[Chunk], callbacks: Sequence[Callback]) -> None:
        """Send encoded commands, given in pieces; each of `callbacks` gets one answer, in order."""
        if self.lost.done():
            for callback in callbacks:
                callback(StorageUnreachable("no connection to Redis"))
            return
        self._waiting += callbacks
        self._out += chunks
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._owner.prepare_flush()
        self._flushing = False
        if self._owner.preparing:
            # Arranged by one of those that were prepared: it has the next turn.
            self.flush_soon()
        if not self.transport.is_closing():
            out, self._out = self._out, []
            self.transport.writelines(out)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand the answers in the bytes that were received to their callbacks."""
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
                    # As `tell`, without a call for each answer of Redis.
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
        """Keep an answer back until it is proven, but for what was only read, and refusals behind nothing."""
        acknowledges = early and not isinstance(reply, hiredis.ReplyError)
        if isinstance(callback, Read) or callback == self._proved or not (acknowledges or self._held):
            tell(callback, reply, _COMMAND)
        else:
            self._held.append(_Held(callback, reply, acknowledges))

    def _proved(self, reply: Reply) -> None:
        """Redis has answered a PING that was sent after the answers held back by then."""
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
        """Give the connection up: what comes over it from now on reaches nobody."""
        self.transport.abort()
        _log.error("connection to Redis closed", reason=reason)

    def _error(self, text: str) -> hiredis.ReplyError:
        """Make the reply of an error: the one place that sees errors without looking at every answer."""
        word = text.partition(" ")[0]
        if word == "NOSCRIPT":
            self._owner.scripts_lost(self)
        elif word == "READONLY" and not self.transport.is_closing():
            # Another one was made the primary, and may be at this address by now.
            self.reject("it has become a replica")
        elif word in _MISPLACED:
            self._owner.misplaced()
        return hiredis.ReplyError(text)

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer every request under way with StorageUnavailable."""
        self.lost.set_result(None)
        waiting, self._waiting = self._waiting, deque()
        try:
            self._owner.link_lost(self, exc)
        except Exception:
            # Whoever waits is told all the same: others wait for those in turn.
            _log.exception("handling of a lost connection failed")
        error = StorageUnavailable("the connection to Redis was lost; whether the last writes happened is not known")
        held, self._held = self._held, deque()
        for callback in (*(each.callback for each in held), *waiting):
            tell(callback, error, _COMMAND)

    async def ask(self, commands: Iterable[bytes]) -> list[Reply]:
        """Send commands and wait for their answers; raises the first error among them."""
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
    """What settles a future with an answer."""

    def settle(reply: Reply) -> None:
        # Whoever waited may have been cancelled; the answer still had its place in the order.
        if not answer.done():
            answer.set_result(reply)

    return settle


PENDING: Final = object()
"""Instead of a reply that is not whole yet."""
MALFORMED: Final = hiredis.ProtocolError
"""Raised for bytes that are no RESP."""
_CHUNK = 1 << 20
_SCRATCH = 256 << 10
_KEEP_BUFFER = 4 << 20
"""How large hiredis' own buffer may stay between replies."""

MakeError = Callable[[str], Exception]
"""Makes the reply of an error from its text."""


class Reader(Protocol):
    """Takes bytes where it says, gives replies: bytes, int, list, None, what `MakeError` made."""

    def room(self) -> memoryview:
        """Where the next bytes go; it must be let go of before `gets`."""

    def received(self, count: int, /) -> None:
        """So many bytes were put there."""

    def gets(self, views: bool, /) -> Any:
        """The next reply, or PENDING.

        Args:
            views: values of some size, 2 KiB or more, may be writable views of the memory that they were received in,
                which nobody else looks at: each is the caller's own. They hold the chunk around them in memory.

        Raises:
            hiredis.ProtocolError: what was received is no RESP.
        """


class CopyingReader:
    """A reader that copies every value."""

    def __init__(self, error: MakeError) -> None:
        self._reader = hiredis.Reader(notEnoughData=PENDING, replyError=error)
        self._reader.setmaxbuf(_KEEP_BUFFER)
        self._scratch = memoryview(bytearray(_SCRATCH))

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._scratch

    def received(self, count: int, /) -> None:
        """So many bytes were put there."""
        self._reader.feed(cast("bytes", self._scratch[:count]))

    def gets(self, _views: bool, /) -> Any:
        """The next reply, or PENDING."""
        return self._reader.gets()


try:
    import headrace.storage.redis._reader as _compiled  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed
    _compiled = None  # type: ignore[assignment]


def make_reader(error: MakeError) -> Reader:
    """A reader, in C where there is a compiler."""
    return CopyingReader(error) if _compiled is None else _compiled.Reader(PENDING, error, MALFORMED, _CHUNK)
