"""Append to native topics: expand batches, and send an entry per record.

A batch of 1 kB may expand to tens of megabytes, which stay in memory until Redis has them. So there is a limit for all
topics, and batches beyond it wait in compressed form. They wait in one queue, so no batch overtakes another one of its
partition.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from time import perf_counter

from headrace.aio.tasks import tell
from headrace.metrics.counters import TICKS, StoreCounters
from headrace.records import streams
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.layout.scripts import script
from headrace.storage.redis.protocol import Reply, encode
from headrace.storage.redis.replies import native_checked, native_error_of
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import CorruptBatch, MessageTooLarge, StorageFull, StorageUnavailable, TopicError
from headrace.topics.model import Append, AppendDone, Appended
from headrace.topics.native import NativeStream

MOST_BYTES = 64 << 20
"""Bytes of expanded batches in flight above which no other one is expanded. The last one may exceed it."""
_SLICE_S = 0.004
"""Seconds of expanding in one turn of the event loop. The last batch may exceed it."""

Turn = Callable[[Exception | None], None]
"""Called once: with None if there is room, otherwise with the error."""


class _Waiting:
    __slots__ = ("stream", "turn")

    def __init__(self, stream: str, turn: Turn) -> None:
        self.stream = stream
        self.turn: Turn | None = turn
        """None: it was refused."""


class Opened:
    """Bytes of expanded batches in flight, and the queue of waiting batches."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Start empty, with a limit in bytes."""
        self._most = most
        self.used = 0
        self._line: deque[_Waiting] = deque()
        self._of: dict[str, deque[_Waiting]] = {}
        """Stream -> its waiting batches."""
        self._due = False

    @property
    def has_room(self) -> bool:
        """Return whether a batch may be expanded now."""
        return self.used < self._most and not self._of

    @property
    def any_waiting(self) -> bool:
        """Return whether a batch is waiting."""
        return bool(self._of)

    def take(self, size: int) -> None:
        """Add the bytes of an expanded batch."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Release the bytes of a batch."""
        self.used -= size
        self._go_on()

    def wait(self, stream: str, turn: Turn) -> None:
        """Call `turn` after all earlier ones when there is room, but never before this returns."""
        waiting = _Waiting(stream, turn)
        self._line.append(waiting)
        self._of.setdefault(stream, deque()).append(waiting)
        self._go_on()

    def refuse(self, stream: str, error: Exception) -> None:
        """Fail all waiting batches of a stream."""
        for waiting in self._of.pop(stream, ()):
            self._tell(waiting, error)
        if not self._of:
            self._line.clear()

    def _go_on(self) -> None:
        """Deferred: the caller is handling responses of Redis, and expanding takes time."""
        if self._of and self.used < self._most and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        until = perf_counter() + _SLICE_S
        while self._of and self.used < self._most:
            waiting = self._line.popleft()
            if waiting.turn is None:
                continue
            same = self._of[waiting.stream]
            same.popleft()
            if not same:
                del self._of[waiting.stream]
            self._tell(waiting, None)
            if perf_counter() >= until:
                break
        self._go_on()

    @staticmethod
    def _tell(waiting: _Waiting, error: Exception | None) -> None:
        turn, waiting.turn = waiting.turn, None
        if turn is not None:
            tell(turn, error, "a batch that waited to be opened")


class NativeAppends:
    """Appends to all native topics."""

    def __init__(
        self, scripts: Scripts, fence: Fence, counted: StoreCounters | None = None, opened: Opened | None = None
    ) -> None:
        """Start without appends."""
        self._scripts = scripts
        self._fence = fence
        self._counted = counted or StoreCounters()
        self._opened = opened or Opened()
        self._process = token_hex(4)
        self._given_up = 0
        """Number of appends without a response. If one of them arrives after a later append, the script rejects it."""

    def append(
        self, stream: NativeStream, append: Append, done: AppendDone, *, follows: bool = False, least: int = 0
    ) -> None:
        """Append the records of a checked batch, one entry each, all or none.

        `append` must not change until the response. With `follows`, earlier batches of its producer are in flight, so
        an unknown producer is out of order. `least` is the minimum offset.

        Raises:
            CorruptBatch, MessageTooLarge. For a waiting batch, `done` gets them.
        """
        if self._opened.has_room:
            self._send(stream, append, done, follows=follows, least=least)
            return

        def turn(refused: Exception | None) -> None:
            if refused is not None:
                done(refused)
                return
            try:
                self._send(stream, append, done, follows=follows, least=least)
            except TopicError as error:
                done(error)

        self._opened.wait(stream.key, turn)

    def refuse_waiting(self, stream: NativeStream, error: TopicError) -> None:
        """Fail the waiting appends to a stream without a topic."""
        self._opened.refuse(stream.key, error)

    async def settle(self, stream: NativeStream) -> None:
        """Wait for the responses of all earlier appends."""
        if self._opened.any_waiting:
            turned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._opened.wait(stream.key, lambda _: None if turned.done() else turned.set_result(None))
            await turned
        native_checked(await self._scripts.shards.at(stream.key).call("PING"))

    def _send(self, stream: NativeStream, append: Append, done: AppendDone, *, follows: bool, least: int) -> None:
        try:
            arguments, count = streams.xadd_arguments(append.batch)
        except BatchTooLarge as error:
            raise MessageTooLarge(str(error)) from None
        except BatchError as error:
            raise CorruptBatch(f"the records of a batch cannot be read: {error}") from None
        opened = len(arguments)
        try:
            self._scripts.check_room(opened)
        except StorageFull as error:
            self._counted.refused += 1
            done(error)
            return
        producer: tuple[str | int, ...] = ("", "", "", "")
        if append.producer_id >= 0:
            producer = (append.producer_id, append.producer_epoch, append.base_sequence, "follows" if follows else "")
        head = encode(
            [
                "EVALSHA", script("native_append").sha, 3, stream.key, state_of(stream.key), producers_of(stream.key),
                self._fence.number, self._process, self._given_up, stream.bits, append.max_timestamp, *producer,
                append.span, least,
            ]
        )  # fmt: skip
        # The argument count must include those.
        length, _, rest = head.partition(b"\r\n")
        connection = self._scripts.shards.at(stream.key)
        answered = partial(self._answered, stream.key, done, len(append.batch), opened, perf_counter())
        self._opened.take(opened)
        connection.send([b"*%d\r\n" % (int(length[1:]) + count) + rest, arguments], answered)

    def _answered(self, key: str, done: AppendDone, size: int, opened: int, began: float, reply: Reply) -> None:
        # A lost connection also calls back.
        self._opened.give_back(opened)
        counted = self._counted
        counted.append_durations.add(int((perf_counter() - began) * TICKS))
        if not isinstance(reply, bytes):
            counted.refused += 1
            if isinstance(reply, StorageUnavailable):
                self._given_up += 1
            error = (
                native_error_of(reply)
                if isinstance(reply, Exception)
                else StorageUnavailable(f"Redis answered {reply!r}")
            )
            if isinstance(error, StorageFull):
                counted.refusal = str(error)
            done(error)
            return
        counted.refusal = ""
        counted.appends += 1
        counted.append_bytes += size
        result = Appended(int(reply[1:]), duplicate=True) if reply.startswith(b"D") else Appended(int(reply))
        self._scripts.when_kept(key, lambda error: done(error or result))
