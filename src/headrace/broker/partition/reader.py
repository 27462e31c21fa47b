"""Where the batches of one log come from for readers: the newest from memory, others from Redis or from the archive."""

from typing import TYPE_CHECKING, Protocol

from headrace.broker.partition.cache import Buffer, CacheBudget, Tail
from headrace.broker.partition.read import fitting
from headrace.broker.partition.read_ahead import Ahead, fit_to
from headrace.broker.partition.size_index import ColdReads, LogIndex
from headrace.broker.ports import LogStorage
from headrace.broker.runtime.budget import ReadBudget
from headrace.topics.model import StoredBatch

if TYPE_CHECKING:
    from headrace.broker.partition.remote import ColdPartition

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

    __slots__ = ("_ahead", "_cold", "_log", "_reads", "_storage", "index", "tail")

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
        self._reads = reads or ReadBudget()
        self._ahead = Ahead(self._reads)

    def clear(self, log_end: int) -> None:
        """Forget everything; the next batch begins at `log_end`."""
        self.tail.clear(log_end)
        self.index.clear(log_end)
        self._ahead.forget()
        # A read that is under way is of the log as it was before: what it brings is not kept.
        self._ahead = Ahead(self._reads)

    def end(self, ended: ReadableLog) -> None:
        """Forget everything, and the log too."""
        self._log = ended
        self.clear(ended.log_end)

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether a read can be answered from memory; see `Readable.cached`."""
        if offset >= self.tail.start:
            return True
        return ahead and offset >= self._log.local_start and self._ahead.ready(offset) is not None

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False
    ) -> tuple[list[Buffer], int]:
        """Whole batches of a `cached` offset, and their size; see `Tail.read`."""
        if offset >= self.tail.start:
            return self.tail.read(offset, limit, whole_first=whole_first)
        found = fit_to(self._ahead.ready(offset) or [], limit, join=join)
        if not found or (len(found[0].batch) > limit and not whole_first):
            return [], 0
        self._ahead.forget()
        return self._answer(found, limit, join, self._ahead)

    async def stored(
        self, offset: int, limit: int, *, join: bool = False, first: int | None = None
    ) -> tuple[list[Buffer], int]:
        """Batches from Redis, the one holding `offset` first, at least one if there is one, and their size.

        What is not in Redis any more comes from the archive; where retention comes between, also behind `local_start`.
        """
        log, ahead = self._log, self._ahead
        cold = log.cold
        stored = [] if cold is not None and offset < log.local_start else await self._following(offset, limit, join)
        if cold is not None and (not stored or stored[0].base_offset > offset) and cold.has(offset, log.local_start):
            old = await cold.read(offset, max(log.local_start, stored[0].base_offset if stored else 0), limit)
            if old:
                return fitting(old, limit)
            stored = stored or await self._following(max(offset, log.local_start), limit, join)
        return self._answer(stored, limit, join, ahead)

    def _answer(self, stored: list[StoredBatch], limit: int, join: bool, ahead: Ahead) -> tuple[list[Buffer], int]:
        """As many as fit, and their size; what follows is read ahead, unless the log was cleared meanwhile."""
        chunks, total = fitting(stored, limit)
        taken = len(chunks)
        if taken and ahead is self._ahead:
            last = stored[taken - 1]
            if taken < len(stored) or last.next_offset < self.tail.start:
                ahead.keep(self.from_redis, last, stored[taken:], limit, join=join)
        return chunks, total

    async def _following(self, offset: int, limit: int, join: bool) -> list[StoredBatch]:
        """Batches from `offset` on, those that were read ahead first."""
        found = await self._ahead.take(offset, limit, join=join)
        return await self.from_redis(offset, limit, join=join) if found is None else found

    async def from_redis(self, offset: int, limit: int, *, join: bool = False) -> list[StoredBatch]:
        """About `limit` bytes of batches from Redis; no more where several may come as one."""
        log = self._log
        joined = limit if join else None
        if self.index.covers(offset):
            end = self.index.end_of(offset, limit)
            stored = await self._storage.read(log.stream, offset, _MOST_BATCHES, self._readable(end), joined)
        else:
            asked, end = self._cold.count, self._readable(None)
            stored = await self._storage.read(log.stream, offset, asked, end, joined)
            size = sum(len(found.batch) for found in stored)
            # Those that come as one are never too many: there were more where the log goes on.
            full = join and bool(stored) and stored[-1].next_offset < end
            self._cold.learn(asked, sum(found.count for found in stored), size, limit, full=full)
        return stored

    def _readable(self, end: int | None) -> int:
        """Not from the log end on: Redis has those batches, and its replicas have not."""
        log_end = self._log.log_end
        return log_end if end is None else min(end, log_end)
