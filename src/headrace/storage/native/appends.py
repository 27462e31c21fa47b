"""Appends to native topics: batches are opened, and sent as an entry for each record.

A compressed batch of a kilobyte may open to tens of megabytes, which lie in the connection for as long as Redis takes:
only as many are opened as there is room for (`storage.native.expanded_batches`). The others wait as they came.
"""

import asyncio
from functools import partial
from secrets import token_hex
from time import perf_counter

from headrace.metrics.counters import TICKS, StoreCounters
from headrace.records import streams
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.layout.scripts import script
from headrace.storage.native.expanded_batches import Opened
from headrace.storage.native.reply_errors import checked, error_of
from headrace.storage.redis.protocol import Reply, encode
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.callbacks import AppendDone
from headrace.topics.errors import CorruptBatch, MessageTooLarge, StorageFull, StorageUnavailable, TopicError
from headrace.topics.model import Append, Appended
from headrace.topics.native import NativeStream


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
        checked(await self._scripts.shards.at(stream.key).call("PING"))

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
            done(error_of(reply) if isinstance(reply, Exception) else StorageUnavailable(f"Redis answered {reply!r}"))
            return
        counted.appends += 1
        counted.append_bytes += size
        result = Appended(int(reply[1:]), duplicate=True) if reply.startswith(b"D") else Appended(int(reply))
        self._scripts.when_kept(key, lambda error: done(error or result))
