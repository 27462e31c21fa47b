"""One partition of a topic in the running server: append, read, wait for more."""

import asyncio
from collections.abc import Callable
from functools import partial

from headrace.broker.cache import Buffer, CacheBudget, Tail
from headrace.broker.ports import LogStorage
from headrace.records.batch import stamp_into, stamp_prefix
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append, Appended, PartitionState

AppendDone = Callable[[Appended | Exception], None]
Watcher = Callable[[int], None]
"""Called with the size in bytes of each batch as it becomes readable; with 0 when the partition goes away."""

_FIRST_GUESS = 16  # batches to ask Redis for before the usual size of this log's batches is known
_MOST_BATCHES = 4096


class Partition:
    """A partition's log end, log start, cached tail and those who wait for it.

    The log end moves only when Redis has answered an append, so it is the high watermark too: what may be
    read is always stored. It never moves back.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        stream: str,
        state: PartitionState,
        storage: LogStorage,
        budget: CacheBudget,
    ) -> None:
        self.topic = topic
        self.index = index
        self.stream = stream
        self.log_start = state.log_start
        self.log_end = state.next_offset
        self.leader_epoch = state.leader_epoch
        self.deleted = False
        self._storage = storage
        self._tail = Tail(budget, state.next_offset)
        self._watchers: set[Watcher] = set()
        self._batch_size = 0  # what batches read from Redis weighed lately
        self._recovery: asyncio.Task[None] | None = None

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
        if self._recovery is not None:
            raise StorageUnavailable(f"{self.topic}-{self.index}: Redis does not answer")
        self._storage.append(self.stream, append, partial(self._appended, append, done))

    def _appended(self, append: Append, done: AppendDone, result: Appended | Exception) -> None:
        if isinstance(result, Appended):
            if not result.duplicate:
                self._extend(append, result.base_offset)
        elif isinstance(result, StorageUnavailable):
            self._lost()
        done(result)

    def _extend(self, append: Append, base_offset: int) -> None:
        batch = append.batch
        next_offset = base_offset + append.span
        if base_offset != self.log_end or isinstance(batch, bytes):
            # Another writer's batches lie between (or the buffer cannot be stamped): Redis has them, memory does not.
            self._tail.clear(next_offset)
        else:
            stamp_into(batch, 0, base_offset, self.leader_epoch)
            self._tail.append(next_offset, batch)
        self.log_end = next_offset
        for watcher in tuple(self._watchers):
            watcher(len(batch))

    def _lost(self) -> None:
        """An append's fate is unknown: learn the log end anew before anything else is written."""
        if self._recovery is None and not self.deleted:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        try:
            while True:
                try:
                    state = await self._storage.open_partition(self.stream)
                except StorageUnavailable:
                    await asyncio.sleep(0.05)
                    continue
                break
            if state.next_offset != self.log_end:
                grown = state.next_offset - self.log_end
                self._tail.clear(state.next_offset)
                self.log_end = max(self.log_end, state.next_offset)
                if grown > 0:
                    for watcher in tuple(self._watchers):
                        watcher(1)
        finally:
            self._recovery = None

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange unless `log_start <= offset <= log_end`; UnknownTopic once it is deleted."""
        if self.deleted:
            raise UnknownTopic(f"{self.topic}-{self.index} has been deleted")
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is outside {self.log_start} to {self.log_end}"
            )

    def cached(self, offset: int) -> bool:
        """Whether a read at `offset` can be answered from memory (the log end itself included)."""
        return offset >= self._tail.start

    def read_cached(self, offset: int, limit: int, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Stamped batches from memory and their size; see `Tail.read`."""
        return self._tail.read(offset, limit, whole_first=whole_first)

    async def read_stored(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        """Stamped batches from Redis, the one holding `offset` first, at least one if there is one, and their size."""
        stored = await self._storage.read(self.stream, offset, self._batches_in(limit))
        chunks: list[Buffer] = []
        total = 0
        for found in stored:
            size = len(found.batch)
            if chunks and total + size > limit:
                break
            chunks.append(stamp_prefix(found.base_offset, self.leader_epoch, found.batch))
            chunks.append(memoryview(found.batch)[16:])
            total += size
        if stored:
            self._batch_size = max(1, sum(len(found.batch) for found in stored) // len(stored))
        return chunks, total

    def _batches_in(self, limit: int) -> int:
        if not self._batch_size:
            return _FIRST_GUESS
        return min(_MOST_BATCHES, limit // self._batch_size + 1)

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
        if self._recovery is not None:
            self._recovery.cancel()
        for watcher in tuple(self._watchers):
            watcher(0)
