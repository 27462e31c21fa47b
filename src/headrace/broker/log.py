"""One partition of a topic in the running server: append, read, wait for more."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from headrace.broker.budget import ReadAhead, ReadBudget
from headrace.broker.cache import Buffer, CacheBudget, Tail
from headrace.broker.index import ColdReads, LogIndex
from headrace.broker.ports import AppendDone, LogStorage
from headrace.records.batch import stamp_prefix
from headrace.records.native import stamp
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import Append, Appended, PartitionState, StoredBatch

Watcher = Callable[[int], None]
"""Called with the size in bytes of each batch as it becomes readable; with 0 when the partition goes away."""

_MOST_BATCHES = 4096
_RETRY_S = 0.05
_log = structlog.get_logger("headrace.log")


class Partition:
    """A partition's log end, log start, cached tail and those who wait for it.

    The log end moves only when Redis has answered an append, so it is the high watermark too: what may be
    read is always stored. It never moves back, unless Redis itself comes back with less than it had acknowledged.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        stream: str,
        state: PartitionState,
        storage: LogStorage,
        budget: CacheBudget,
        reads: ReadBudget | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.stream = stream
        self.log_start = state.log_start
        self.log_end = state.next_offset
        self.leader_epoch = state.leader_epoch
        self.deleted = False
        self.paused = False
        """Whether appends are refused for a moment: its records are about to be elsewhere."""
        self._storage = storage
        self._tail = Tail(budget, state.next_offset)
        self._watchers: set[Watcher] = set()
        self._index = LogIndex(state.next_offset)
        self._cold = ColdReads()
        self._recovery: asyncio.Task[None] | None = None
        self._reads = reads or ReadBudget()
        self._ahead: tuple[StoredBatch, asyncio.Future[list[StoredBatch]], ReadAhead] | None = None
        """The last batch that was read, those after it, and their place in the budget."""

    def append(self, append: Append, done: AppendDone) -> None:
        """Store a checked batch; `done` gets its place in the log, or the error.

        The batch's buffer belongs to the log from here on: it is stamped in place once its offset is known,
        and served from memory.

        Raises:
            StorageUnavailable: Redis was lost and has not come back yet.
            UnknownTopic: the topic has been deleted.
        """
        if self.deleted:
            raise UnknownTopic(f"{self.topic}-{self.index} has been deleted")
        if self._recovery is not None or self.paused:
            reason = "its storage is being changed" if self.paused else "Redis does not answer"
            raise StorageUnavailable(f"{self.topic}-{self.index}: {reason}")
        self._storage.append(self.stream, append, partial(self._appended, append, done))

    def _appended(self, append: Append, done: AppendDone, result: Appended | Exception) -> None:
        if type(result) is Appended:
            if not result.duplicate:
                self._extend(append, result.base_offset)
        elif isinstance(result, StorageUnavailable):
            self._lost()
        done(result)

    def _extend(self, append: Append, base_offset: int) -> None:
        batch = append.batch
        size = len(batch)
        next_offset = base_offset + append.span
        if base_offset != self.log_end or isinstance(batch, bytes):
            # Another writer's batches lie between (or the buffer cannot be stamped): Redis has them, memory does not.
            self._tail.clear(next_offset)
            self._index = LogIndex(next_offset)
        else:
            self._index.append(base_offset, size)
            stamp(batch, base_offset, self.leader_epoch)
            self._tail.append(next_offset, batch)
        self.log_end = next_offset
        if self._watchers:
            for watcher in tuple(self._watchers):
                watcher(size)

    def _lost(self) -> None:
        """An append's fate is unknown: learn the log end anew before anything else is written."""
        if self._recovery is None and not self.deleted:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        while True:
            before = self.log_end
            try:
                state = await self._storage.open_partition(self.stream)
                if self.log_end == before:
                    break
                # An append that was already on its way was answered meanwhile: this state may be older than that.
            except StorageUnavailable:
                await asyncio.sleep(_RETRY_S)
            except TopicError as error:
                # Fenced, above all: this partition takes nothing any more, and the server is about to stop.
                _log.error("partition lost", topic=self.topic, partition=self.index, reason=str(error))
                return
        self._recovery = None
        self._take_over(state)

    def _take_over(self, state: PartitionState) -> None:
        """Go on from what Redis has: more than was answered, or less if it lost what it had answered."""
        before = self.log_end
        if state.next_offset == before:
            return
        if state.next_offset < before:
            _log.error(
                "Redis came back without records that it had acknowledged",
                topic=self.topic,
                partition=self.index,
                lost=before - state.next_offset,
            )
        self.log_start, self.log_end = state.log_start, state.next_offset
        self._tail.clear(state.next_offset)
        self._index = LogIndex(state.next_offset)
        self._forget_ahead()
        for watcher in tuple(self._watchers):
            watcher(1 if state.next_offset > before else 0)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `log_start <= offset <= log_end`; UnknownTopic once it is deleted."""
        if self.deleted:
            raise UnknownTopic(f"{self.topic}-{self.index} has been deleted")
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is outside {self.log_start} to {self.log_end}"
            )

    def at_end(self, offset: int) -> bool:
        """Whether a read at `offset` would find nothing."""
        return offset == self.log_end

    def cached(self, offset: int) -> bool:
        """Whether a read at `offset` can be answered from memory (the log end itself included)."""
        return offset >= self._tail.start

    def read_cached(self, offset: int, limit: int, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Stamped batches from memory and their size; see `Tail.read`."""
        return self._tail.read(offset, limit, whole_first=whole_first)

    async def read_stored(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        """Stamped batches from Redis, the one holding `offset` first, at least one if there is one, and their size."""
        stored = await self._stored(offset, limit)
        chunks: list[Buffer] = []
        total = 0
        taken = 0
        for found in stored:
            size = len(found.batch)
            if taken and total + size > limit:
                break
            if isinstance(found.batch, memoryview):
                stamp(found.batch, found.base_offset, self.leader_epoch)
                chunks.append(found.batch)
            else:
                chunks.append(stamp_prefix(found.base_offset, self.leader_epoch, found.batch))
                chunks.append(memoryview(found.batch)[16:])
            total += size
            taken += 1
        if taken:
            self._keep_ahead(stored[taken - 1], stored[taken:], limit)
        return chunks, total

    async def _stored(self, offset: int, limit: int) -> list[StoredBatch]:
        """Batches from `offset` on: those that the last read left over, or was followed by, if it ended here.

        It may have ended in the middle of its last batch, where a door hands out records and not batches.
        """
        if self._ahead is not None:
            last, following, _ = self._ahead
            if offset == last.next_offset:
                self._forget_ahead()
                return await following
            if last.base_offset <= offset < last.next_offset:
                self._forget_ahead()
                return [last, *await following]
        return await self._read(offset, limit)

    async def _read(self, offset: int, limit: int) -> list[StoredBatch]:
        """About `limit` bytes of batches from Redis."""
        if self._index.covers(offset):
            return await self._storage.read(self.stream, offset, _MOST_BATCHES, self._index.end_of(offset, limit))
        asked = self._cold.count
        stored = await self._storage.read(self.stream, offset, asked)
        self._cold.learn(asked, len(stored), sum(len(found.batch) for found in stored), limit)
        return stored

    def _keep_ahead(self, last: StoredBatch, left: list[StoredBatch], limit: int) -> None:
        """Read on while the consumer is busy with this answer, as far as memory has not got it anyway."""
        following = last.next_offset
        if following >= self._tail.start and not left:
            return
        self._forget_ahead()
        place = self._reads.read_ahead(limit, self._forget_ahead)
        if place is None:
            return
        reading = asyncio.ensure_future(self._read_ahead(left, following, place.size))
        # Nobody may ever come for it: an error is then nobody's.
        reading.add_done_callback(lambda done: place.came(_bytes_of(done)))
        self._ahead = (last, reading, place)

    def _forget_ahead(self) -> None:
        """What was read ahead is asked for, or not wanted any more."""
        if self._ahead is not None:
            _, _, place = self._ahead
            self._ahead = None
            place.drop()

    async def _read_ahead(self, left: list[StoredBatch], following: int, limit: int) -> list[StoredBatch]:
        if sum(len(found.batch) for found in left) >= limit:
            return left
        return left + await self._read(left[-1].next_offset if left else following, limit)

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every batch from now on."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling; harmless when it was not watching."""
        self._watchers.discard(watcher)

    def trimmed(self, log_start: int) -> None:
        """Take over a log start that retention or DeleteRecords moved."""
        self.log_start = max(self.log_start, log_start)

    def close(self) -> None:
        """The topic is gone: free the memory, wake everyone who waits."""
        self.deleted = True
        self._tail.clear(self.log_end)
        self._forget_ahead()
        if self._recovery is not None:
            self._recovery.cancel()
        for watcher in tuple(self._watchers):
            watcher(0)


def _bytes_of(reading: "asyncio.Future[list[StoredBatch]]") -> int:
    """What a read has brought; nothing when it failed."""
    if reading.cancelled() or reading.exception() is not None:
        return 0
    return sum(len(found.batch) for found in reading.result())
