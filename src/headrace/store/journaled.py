"""Appends that are acknowledged from the journal, and stored in Redis behind that.

Where this server alone writes, it knows where a log ends and what its producers send next. A small batch that continues
both will be appended, and at which offset is certain: it is entered in the journal, acknowledged, and goes to Redis
with others in its own time. All else is acknowledged when Redis has answered. So every acknowledged batch is in the
journal or in Redis, and a server that starts stores what the journal has and Redis has not (decision 0015).

Of one log, a batch is acknowledged early only while no other one's fate is open: it waits for those before it.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable
from functools import partial

import structlog

from headrace.store.appends import LARGE, AppendDone
from headrace.store.connection import Connection, Reply, encode
from headrace.store.direct import DirectAppends
from headrace.store.errors import Displaced
from headrace.store.journal import Entry, Journal
from headrace.store.replay import replay
from headrace.topics.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)
from headrace.topics.model import Append, Appended
from headrace.topics.sequences import SEQUENCES

_MOST_OFFSET = 2**53 - 1
_MOST_PRODUCERS = 1_000
"""Producers known of one log; all are forgotten when there are more."""
_LOOK_BYTES = 4 << 20
"""How much is acknowledged between two looks at the memory that Redis has left."""
_RESERVE_BYTES = 64 << 20
"""Memory that Redis has to have left, or an eighth of all if that is less, for a batch to be acknowledged before it."""
_RETRY_S = 0.05
_PATIENCE_S = 5.0
"""How long whoever needs what Redis refused waits for it, before an error says so."""
_CLOSED = "the storage is closed"
_INFO = encode(["INFO", "memory"])
_INFO_FIGURE = re.compile(rb"^(used_memory|maxmemory):(\d+)", re.MULTILINE)
_log = structlog.get_logger("headrace.store")


class _Log:
    """A log: how it ends once everything under way is in it."""

    __slots__ = ("doubts", "given", "held", "key", "known", "name", "next_offset", "open", "producers", "unstored")

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = name.encode()
        self.known = False
        self.doubts = 0
        """How often it was forgotten: answers to what was sent before teach nothing."""
        self.next_offset = 0
        self.producers: dict[int, tuple[int, int]] = {}
        """By producer id: its epoch, and the sequence it goes on with."""
        self.open = 0
        """Appends whose fate Redis has still to tell."""
        self.unstored = 0
        """Batches that are acknowledged and not in Redis yet."""
        self.given = 0
        """The next offset after the last of those."""
        self.held: deque[tuple[Append, AppendDone]] = deque()
        """Appends that wait for those."""

    def forget(self) -> None:
        self.known = False
        self.doubts += 1
        self.producers = {}

    def continued_by(self, append: Append) -> bool:
        if not self.known or self.open or self.next_offset + append.span > _MOST_OFFSET:
            return False
        return append.producer_id < 0 or (
            self.producers.get(append.producer_id) == (append.producer_epoch, append.base_sequence)
        )

    def take(self, append: Append, base_offset: int) -> None:
        self.next_offset = base_offset + append.span
        if append.producer_id >= 0:
            expected = (append.base_sequence + append.span) % SEQUENCES
            if len(self.producers) >= _MOST_PRODUCERS:
                self.producers = {}
            self.producers[append.producer_id] = append.producer_epoch, expected


class _Placed:
    """A batch that was acknowledged with its place and is on its way to Redis."""

    __slots__ = ("append", "base_offset", "log", "now_ms", "number", "owner", "proves", "settled")

    def __init__(
        self,
        owner: "JournaledAppends",
        log: _Log,
        number: int,
        base_offset: int,
        now_ms: int,
        append: Append,
        proves: int,
    ) -> None:
        self.owner = owner
        self.log = log
        self.number = number
        self.base_offset = base_offset
        self.now_ms = now_ms
        self.append = append
        self.proves = proves
        """Number of the last entry that Redis had answered for by then."""
        self.settled = False

    def answered(self, result: Appended | Exception) -> None:
        """Redis has it, or not."""
        if type(result) is Appended and result.base_offset == self.base_offset:
            self.owner.stored(self)
            if not result.duplicate:
                self.owner.proven(self)
        elif isinstance(result, UnknownTopic):
            # A log that is gone was deleted with all that is in it.
            self.log.forget()
            self.owner.stored(self)
        else:
            self.owner.failed(self, result)


class JournaledAppends:
    """Takes appends like `DirectAppends`, which it sends them on with."""

    def __init__(
        self, direct: DirectAppends, journal: Journal, connection: Connection, epoch: int, now_ms: Callable[[], int]
    ) -> None:
        self._direct = direct
        self._journal = journal
        self._connection = connection
        self._epoch = epoch
        self._now_ms = now_ms
        self._logs: dict[str, _Log] = {}
        self._holding: dict[_Log, None] = {}
        """The logs that hold appends."""
        self._placed: deque[_Placed] = deque()
        """By number, the oldest first."""
        self._unstored = 0
        """How many of them are not in Redis yet."""
        self._stored_to = self._kept_to = journal.number
        """The last entry up to which Redis has taken all, and up to which it has written all to its file."""
        self._failed: list[_Placed] = []
        self._trouble: Exception | None = None
        """Why Redis took not what it had to, until it has it."""
        self._well = asyncio.Event()
        self._well.set()
        self._repair: asyncio.Task[None] | None = None
        self._closed = False
        self._allowed = 0
        """Bytes that may be acknowledged before the next look at Redis' memory."""
        self._looking = False

    def append(self, stream: str, append: Append, done: AppendDone) -> None:
        """Append a batch. `done` gets the answer: at once, or from the connection's reader."""
        if self._trouble is not None or self._closed:
            done(self._trouble or StorageUnavailable(_CLOSED))
            return
        log = self._logs.get(stream)
        if log is None:
            log = self._logs[stream] = _Log(stream)
        if log.held or (log.open and len(append.batch) < LARGE):
            log.held.append((append, done))
            self._holding[log] = None
        else:
            self._take(log, append, done)

    def _take(self, log: _Log, append: Append, done: AppendDone) -> None:
        size = len(append.batch)
        if size < LARGE and log.continued_by(append) and self._has_room(size):
            base_offset, now_ms = log.next_offset, self._now_ms()
            number = self._journal.add(log.key, base_offset, now_ms, append)
            if number:
                self._allowed -= size
                log.take(append, base_offset)
                placed = _Placed(self, log, number, base_offset, now_ms, append, self._stored_to)
                self._placed.append(placed)
                self._unstored += 1
                log.unstored += 1
                log.given = log.next_offset
                self._direct.append(log.name, append, placed.answered, certain=base_offset)
                done(Appended(base_offset))
                return
        self._pass_on(log, append, done)

    def _pass_on(self, log: _Log, append: Append, done: AppendDone) -> None:
        """Let Redis say what becomes of a batch."""
        log.open += 1
        # When Redis refuses those before it, it must not get an offset of theirs.
        least = log.given if log.unstored else 0
        self._direct.append(log.name, append, partial(self._answered, log, log.doubts, append, done), least=least)

    def _answered(self, log: _Log, doubts: int, append: Append, done: AppendDone, result: Appended | Exception) -> None:
        log.open -= 1
        if type(result) is Appended:
            if not result.duplicate and doubts == log.doubts:
                log.take(append, result.base_offset)
                log.known = True
        elif not isinstance(result, OutOfOrderSequence | InvalidProducerEpoch):
            log.forget()
        try:
            done(result)
        except Exception:
            # One request's trouble; every other one still gets its own answer.
            _log.exception("the answer to an append could not be handled")
        if log.held and not log.open:
            self._release(log)

    def _release(self, log: _Log) -> None:
        """Go on with what was held; behind one that Redis has to decide on, the rest goes to it in the same call."""
        held = log.held
        while held:
            append, done = held.popleft()
            try:
                if self._trouble is not None:
                    done(self._trouble)
                elif log.open:
                    self._pass_on(log, append, done)
                else:
                    self._take(log, append, done)
            except Exception:
                _log.exception("the answer to an append could not be handled")
        self._holding.pop(log, None)

    # Memory: what is acknowledged must find room in Redis

    def _has_room(self, size: int) -> bool:
        if self._allowed < _LOOK_BYTES and not self._looking:
            self._looking = True
            self._connection.send([_INFO], self._looked)
        return size <= self._allowed

    def _looked(self, reply: Reply) -> None:
        self._looking = False
        self._allowed = 0
        if type(reply) is bytes:
            figures = {name: int(value) for name, value in _INFO_FIGURE.findall(reply)}
            used, most = figures.get(b"used_memory", 0), figures.get(b"maxmemory", 0)
            reserve = min(_RESERVE_BYTES, most // 8)
            if not most or used + self._journal.size + reserve < most:
                self._allowed = 2 * _LOOK_BYTES

    # What Redis says of batches that are acknowledged

    def stored(self, placed: _Placed) -> None:
        """Redis has a batch."""
        placed.settled = True
        self._unstored -= 1
        placed.log.unstored -= 1
        waiting = self._placed
        number = 0
        while waiting and waiting[0].settled:
            number = waiting.popleft().number
        if number:
            self._stored_to = number
            self._journal.stored(number)
        if self._failed:
            self._repair_soon()

    def proven(self, placed: _Placed) -> None:
        """Redis has taken a write that was sent behind its answers to others, so it had room on its disk for these.

        It answers before it knows: where the disk is full it has them in memory only, and takes no more writes.
        """
        if placed.proves > self._kept_to:
            self._keep_to(placed.proves)

    def _keep_to(self, number: int) -> None:
        self._kept_to = number
        self._journal.kept(number)

    def failed(self, placed: _Placed, result: Appended | Exception) -> None:
        """Redis has it not, or nobody knows: from now on nothing is taken until it has."""
        reason = result if isinstance(result, Exception) else Displaced(f"it was stored at {result.base_offset}")
        if self._trouble is None:
            _log.warning("acknowledged batches are not in Redis yet", reason=str(reason))
            self._well.clear()
            self._trouble = StorageUnavailable(f"acknowledged batches are not in Redis yet: {reason}")
        placed.log.forget()
        self._failed.append(placed)
        self._repair_soon()

    def _repair_soon(self) -> None:
        """Store what failed, as soon as the fate of all the rest is known."""
        if self._repair is None and len(self._failed) == self._unstored:
            self._repair = asyncio.get_running_loop().create_task(self._store_failed())

    async def _store_failed(self) -> None:
        failed = sorted(self._failed, key=lambda placed: placed.number)
        entries = [
            Entry(placed.number, placed.log.name, placed.base_offset, placed.now_ms, placed.append) for placed in failed
        ]
        while True:
            try:
                await replay(self._connection, self._epoch, entries)
                break
            except TopicError as error:
                if self._closed:
                    return
                _log.debug("acknowledged batches are not in Redis yet", reason=str(error))
                await asyncio.sleep(_RETRY_S)
        _log.info("acknowledged batches are in Redis again", batches=len(failed))
        self._failed = []
        self._repair = None
        self._trouble = None
        self._well.set()
        self._allowed = 0
        for placed in failed:
            self.stored(placed)
        for log in self._logs.values():
            # The logs have gone on without those who remember how they end.
            self._direct.forget(log.name)
            log.forget()
        for log in list(self._holding):
            if not log.open:
                self._release(log)

    def whole(self) -> bool:
        """Whether Redis has refused nothing that has been acknowledged, or has got it since."""
        return self._trouble is None

    async def restored(self) -> None:
        """Return when Redis has everything that it refused for a while.

        Raises:
            StorageUnavailable: it does not take it, for some seconds; or the storage is closed.
        """
        if self._trouble is not None and not self._closed:
            self.flush()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._well.wait()
            except TimeoutError:
                # A disk that is full may stay so: nobody is kept waiting for that.
                raise StorageUnavailable(str(self._trouble)) from None
        if self._closed:
            raise StorageUnavailable(_CLOSED)

    # As in `DirectAppends`

    def lags(self, stream: str) -> bool:
        """Whether Redis has yet to get a batch of this log that has been acknowledged."""
        log = self._logs.get(stream)
        return log is not None and log.unstored > 0

    def flush(self) -> None:
        """Send what waits, now."""
        for log in self._holding:
            while log.held:
                self._pass_on(log, *log.held.popleft())
        self._holding.clear()
        self._direct.flush()

    def forget(self, stream: str) -> None:
        """The stream is gone, or something else than an append was done to it."""
        self._direct.forget(stream)
        if not self._closed:
            # A later log may have its name, and must get nothing of what this one had.
            self._keep_to(self._stored_to)
        log = self._logs.get(stream)
        if log is not None:
            log.forget()
            if not (log.open or log.held or log.unstored):
                del self._logs[stream]

    async def close(self) -> None:
        """Stop trying to store what Redis does not take; a server that starts on this journal goes on with it."""
        self._closed = True
        self._well.set()
        if self._repair is not None:
            self._repair.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repair
        self._journal.close()
