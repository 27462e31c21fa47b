"""Appends to native topics: batches are expanded, and sent as an entry for each record.

A compressed batch of a kilobyte may expand to tens of megabytes, which lie in the connection until Redis has them.
Batches are expanded only while there is room for their bytes, over all topics and clients; else they wait as they came,
which is what their request is counted with. All wait in one line: none overtakes another of its partition, and one that
waits holds nothing that another ahead of it needs.
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
"""Of opened batches without an answer of Redis: with so many no more are opened. The last one comes on top."""
_SLICE_S = 0.004
"""How long batches are opened in one turn of the event loop; the last one comes on top here, too."""

Turn = Callable[[Exception | None], None]
"""Called once: with None where there is room, else with why it will not come to that."""


class _Waiting:
    __slots__ = ("stream", "turn")

    def __init__(self, stream: str, turn: Turn) -> None:
        self.stream = stream
        self.turn: Turn | None = turn
        """None: it was refused."""


class Opened:
    """Bytes of opened batches, from their opening to Redis' answer, and the line of those that wait to be opened."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Nothing is opened. `most`: bytes with which no more is."""
        self._most = most
        self.used = 0
        self._line: deque[_Waiting] = deque()
        self._of: dict[str, deque[_Waiting]] = {}
        """Stream -> those of the line that wait for it; none without any."""
        self._due = False

    @property
    def has_room(self) -> bool:
        """Whether a batch may be opened now: there is room, and nobody waits."""
        return self.used < self._most and not self._of

    @property
    def any_waiting(self) -> bool:
        """Whether somebody waits."""
        return bool(self._of)

    def take(self, size: int) -> None:
        """A batch was opened to so many bytes."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Redis has answered one, or never will."""
        self.used -= size
        self._go_on()

    def wait(self, stream: str, turn: Turn) -> None:
        """Call `turn` when all that waits ahead has had its turn and there is room; never before this returns."""
        waiting = _Waiting(stream, turn)
        self._line.append(waiting)
        self._of.setdefault(stream, deque()).append(waiting)
        self._go_on()

    def refuse(self, stream: str, error: Exception) -> None:
        """Tell all who wait to append to a stream that it will not come to that."""
        for waiting in self._of.pop(stream, ()):
            self._tell(waiting, error)
        if not self._of:
            self._line.clear()

    def _go_on(self) -> None:
        """Not at once: who gives back is in the middle of Redis' answers, and to open a batch takes time."""
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
    """Those of all native topics."""

    def __init__(
        self, scripts: Scripts, fence: Fence, counted: StoreCounters | None = None, opened: Opened | None = None
    ) -> None:
        """Begin.

        Args:
            scripts: over the connection that batches go over.
            fence: the number that the script is told: it refuses an older one.
            counted: counts what is appended.
            opened: what batches are opened in; None: memory of the usual size.
        """
        self._scripts = scripts
        self._fence = fence
        self._counted = counted or StoreCounters()
        self._opened = opened or Opened()
        self._process = token_hex(4)
        self._given_up = 0
        """How many appends got no answer: one of them that comes in later than what is sent from now on is refused."""

    def append(
        self, stream: NativeStream, append: Append, done: AppendDone, *, follows: bool = False, least: int = 0
    ) -> None:
        """Append the records of a checked batch, one entry each, all or none.

        Args:
            stream: the partition.
            append: the batch, which must stay as it is until it has its answer.
            done: told where it lies, or why it does not.
            follows: batches of its producer were sent ahead of it: it is out of order where Redis knows none of them.
            least: it lies there or behind.

        Raises:
            CorruptBatch: its records cannot be read. MessageTooLarge: they take more than a native topic takes.
            Where it waits to be opened, `done` is told so.
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
        """Answer those appends to a stream that were not sent: it is no topic's any more."""
        self._opened.refuse(stream.key, error)

    async def settle(self, stream: NativeStream) -> None:
        """Return when every append given before has its answer: answers come in order, so this one is the last."""
        if self._opened.any_waiting:
            turned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Where they are refused it is its turn, too: they have their answers.
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
        # The command continues with what was encoded elsewhere: its count of arguments has to say so.
        length, _, rest = head.partition(b"\r\n")
        connection = self._scripts.shards.at(stream.key)
        answered = partial(self._answered, stream.key, done, len(append.batch), opened, perf_counter())
        self._opened.take(opened)
        connection.send([b"*%d\r\n" % (int(length[1:]) + count) + rest, arguments], answered)

    def _answered(self, key: str, done: AppendDone, size: int, opened: int, began: float, reply: Reply) -> None:
        # Whatever the answer is: a connection that is lost answers, too.
        self._opened.give_back(opened)
        counted = self._counted
        counted.append_durations.add(int((perf_counter() - began) * TICKS))
        if not isinstance(reply, bytes):
            counted.refused += 1
            if isinstance(reply, StorageUnavailable):
                self._given_up += 1
            done(
                native_error_of(reply)
                if isinstance(reply, Exception)
                else StorageUnavailable(f"Redis answered {reply!r}")
            )
            return
        counted.appends += 1
        counted.append_bytes += size
        result = Appended(int(reply[1:]), duplicate=True) if reply.startswith(b"D") else Appended(int(reply))
        self._scripts.when_kept(key, lambda error: done(error or result))
