"""Read another broker's log directly from storage, as a snapshot for one request."""

import asyncio
from typing import Self

from headrace.broker.log_ports import LogLook, LogStorage
from headrace.broker.partition import offset_lookup
from headrace.broker.partition.cache import Buffer, first_readable, fitting
from headrace.broker.partition.high_watermark import high_watermark_unknown, least_high_watermark
from headrace.broker.partition.in_sync_replicas import replicas_caught_up
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.remote_log import RemotePartition
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Watcher, gone, outside
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.topics.errors import StorageUnavailable
from headrace.topics.transactions import AbortedTransaction, Producers, Transactions

_AT_ONCE = 64
"""Maximum batches of one read."""
_WOKEN_S = 1.0
"""Seconds until a repeated look at a stale primary.

A primary that was paused until its replica was promoted reports old data until other servers inform it.
"""


class RemotePartitionReader:
    """A `Source` without waiting readers and cache."""

    has_gaps = False

    def __init__(
        self,
        partition: LeaderPartition,
        look: LogLook,
        log_end: int,
        transactions: Transactions,
        *,
        high_watermark_known: bool,
    ) -> None:
        """Use `look_at`."""
        transactions.finish(log_end)
        self._transactions = transactions
        self.topic = partition.topic
        self.index = partition.index
        self.stream = partition.stream
        self.local_start = look.log_start
        self.log_end = log_end
        self._high_watermark_known = high_watermark_known
        self._partition = partition
        self._look = look

    @classmethod
    async def look_at(cls, partition: LeaderPartition, storage: LogStorage, offset: int) -> Self:
        """Return the current log up to its high watermark, or the last known one if replicas are late.

        `offset` is the next one to read, which a replaced primary may not have reached. Raises StorageUnavailable.
        """
        stream, copies, replication = partition.stream, storage.copies, partition.replication
        primary = copies.primary(stream)
        look = await storage.look(stream)
        if offset > look.next_offset and replication.min_insync == 1 and copies.can_replicate:
            await asyncio.sleep(_WOKEN_S)
            primary = copies.primary(stream)
            look = await storage.look(stream)
        end, known, epochs = look.next_offset, True, look.epochs
        least = 0
        if epochs is not None:
            least = least_high_watermark(partition.log_end, replication.high_watermark_epoch, look, epochs)
        if replication.min_insync > 1 and copies.can_replicate and (end != least or offset > end):
            known = await replicas_caught_up(copies, stream, replication.min_insync)
            if copies.primary(stream) != primary:
                raise StorageUnavailable(f"another primary may have taken over while {stream} was looked at")
            if not known:
                end = least
            elif epochs is not None:
                partition.learn_high_watermark(end, epochs.rows[-1].epoch)
        transactions = await look.transactions()
        if transactions is None:
            raise StorageUnavailable(f"{stream}: the index of its transactions is being rebuilt")
        return cls(partition, look, end, transactions, high_watermark_known=known)

    @property
    def _cold(self) -> RemotePartition | None:
        return self._partition.cold

    @property
    def deleted(self) -> bool:
        """See `Source.deleted`."""
        return self._partition.deleted

    @property
    def cleaned_end(self) -> int:
        """See `Readable.cleaned_end`."""
        return self._look.cleaned.end

    @property
    def log_start(self) -> int:
        """First readable offset."""
        return first_readable(None if self._cold is None else self._cold.start, self.local_start)

    def check_readable(self, offset: int) -> None:
        """See `Readable.check_readable`."""
        if self.deleted:
            raise gone(self)
        if offset < self.log_start or self.certainly_past_end(offset):
            raise outside(self, offset, self.log_start, self.log_end)

    @property
    def leader_epoch(self) -> int:
        """See `Source.leader_epoch`."""
        epochs = self._look.epochs
        return -1 if epochs is None else epochs.rows[-1].epoch

    def kept(self, offset: int, leader_epoch: int) -> int:
        """See `Source.kept`."""
        epochs = self._look.epochs
        return offset if epochs is None else epochs.kept_for(offset, leader_epoch)

    def certainly_past_end(self, offset: int) -> bool:
        """See `Source.certainly_past_end`."""
        return self._high_watermark_known and offset > self.log_end

    def _check_end(self) -> None:
        if not self._high_watermark_known:
            raise high_watermark_unknown(f"{self.topic}-{self.index}")

    async def ask_end(self) -> None:
        """Raise NotLeader if the end is unknown."""
        self._check_end()

    def visible_end(self, isolation: Isolation) -> int:
        """Return the known high watermark, or the last stable offset."""
        if isolation == UNCOMMITTED:
            return self.log_end
        return max(self._transactions.stable_end(self.log_end), min(self.log_start, self.log_end))

    def check_stable(self) -> None:
        """Do nothing: `look_at` fails if the last stable offset is not known."""

    @property
    def aborted_from(self) -> int:
        """See `Readable.aborted_from`."""
        return self._transactions.aborted.complete_from

    def aborted(self, offset: int, end: int, producers: Producers | None = None) -> list[AbortedTransaction]:
        """See `Readable.aborted`."""
        return self._transactions.aborted.between(offset, end, producers)

    async def aborted_before(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """See `Readable.aborted_before`."""
        return await self._look.aborted(offset, before, end, producers)

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Whether a read would find nothing."""
        return offset >= self.visible_end(isolation)

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether `offset` is the end: nothing else is in memory."""
        return offset >= self.log_end

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Return nothing: there is no cache."""
        return [], 0

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """See `Readable.read_stored`. Also reads the archive."""
        cold, end = self._cold, self.visible_end(isolation)
        if cold is not None and offset < self.local_start and cold.has(offset, self.local_start):
            old = await cold.read(offset, min(self.local_start, end), limit)
            if old:
                return fitting(old, limit)
        found = await self._look.read(self.stream, offset, _AT_ONCE, end)
        return fitting(found, limit, self.cleaned_end)

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """See `Source.find_offset`."""
        return await offset_lookup.find(self._look, self, timestamp, searcher, self._cold, isolation)

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """Do nothing: a snapshot does not grow."""

    def unwatch(self, watcher: Watcher) -> None:
        """Do nothing."""
