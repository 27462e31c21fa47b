"""Where the batches of one log come from for readers: the newest from memory, others from Redis or from the archive."""

from typing import TYPE_CHECKING, Protocol

from headrace.broker.ahead import Ahead
from headrace.broker.budget import ReadBudget
from headrace.broker.cache import Buffer, CacheBudget, Tail
from headrace.broker.index import ColdReads, LogIndex
from headrace.broker.ports import LogStorage
from headrace.broker.reading import fitting, readable
from headrace.topics.model import StoredBatch

if TYPE_CHECKING:
    from headrace.broker.cold import ColdPartition

_MOST_BATCHES = 4096


class ReadableLog(Protocol):
    """What is to be known of a log before it is read."""

    stream: str
    local_start: int
    log_end: int
    cold: "ColdPartition | None"


class LogReader:
    """What this server knows of a log's batches so that reads are cheap, and the reads.

    Whoever appends to the log adds each batch to `tail` and `index`, which are the same for as long as this is.
    """

    __slots__ = ("_ahead", "_cold", "_log", "_storage", "index", "tail")

    def __init__(self, log: ReadableLog, storage: LogStorage, budget: CacheBudget, reads: ReadBudget | None) -> None:
        """Nothing is known yet.

        Args:
            log: tells at each read where it begins and ends.
            storage: where it is.
            budget: of all cached tails together.
            reads: budget of what is read ahead; None: one of its own.
        """
        self.tail = Tail(budget, 0)
        """The newest batches."""
        self.index = LogIndex(0)
        """Where the bytes of those are that came since it was cleared."""
        self._log = log
        self._storage = storage
        self._cold = ColdReads()
        self._ahead = Ahead(reads or ReadBudget(), self.from_redis)

    def clear(self, log_end: int) -> None:
        """Forget everything; the next batch begins at `log_end`."""
        self.tail.clear(log_end)
        self.index.clear(log_end)
        self._ahead.forget()

    async def stored(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        """Batches from Redis, the one holding `offset` first, at least one if there is one, and their size.

        What is not in Redis any more comes from the archive; where retention comes between, also behind `local_start`.
        """
        log = self._log
        cold = log.cold
        stored = [] if cold is not None and offset < log.local_start else await self._following(offset, limit)
        if cold is not None and (not stored or stored[0].base_offset > offset) and cold.has(offset, log.local_start):
            old = await cold.read(offset, max(log.local_start, stored[0].base_offset if stored else 0), limit)
            if old:
                return fitting(old, limit)
            stored = stored or await self._following(max(offset, log.local_start), limit)
        chunks, total = fitting(stored, limit)
        taken = len(chunks)
        if taken:
            last = stored[taken - 1]
            if taken < len(stored) or last.next_offset < self.tail.start:
                self._ahead.keep(last, stored[taken:], limit)
        return chunks, total

    async def _following(self, offset: int, limit: int) -> list[StoredBatch]:
        """Batches from `offset` on, those that were read ahead first."""
        found = await self._ahead.take(offset)
        return await self.from_redis(offset, limit) if found is None else found

    async def from_redis(self, offset: int, limit: int) -> list[StoredBatch]:
        """About `limit` bytes of batches from Redis."""
        stream = self._log.stream
        if self.index.covers(offset):
            stored = await self._storage.read(stream, offset, _MOST_BATCHES, self.index.end_of(offset, limit))
        else:
            asked = self._cold.count
            stored = await self._storage.read(stream, offset, asked)
            self._cold.learn(asked, len(stored), sum(len(found.batch) for found in stored), limit)
        return readable(stored, self._log.log_end)
