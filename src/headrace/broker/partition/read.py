"""Read a partition into a sink, which is a partial API response with a remaining size."""

from functools import partial
from typing import Protocol

from headrace.broker.partition.cache import Buffer, next_offset, producers_of
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Readable, Source, aborted_are_known
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.topics.committed_batches import HiddenBatches, is_transactional
from headrace.topics.errors import StorageUnavailable
from headrace.topics.transactions import AbortedTransaction, Producers

_USUAL_BYTES = 1 << 20
"""A record of up to this size needs no memory reservation."""
_LISTED = 32 << 10
"""Bytes of the newest batches passed to a sink at once. Many requests may read thousands of small batches in one
turn of the event loop.
"""
MOST_HIDDEN = 64 << 20
"""Bytes of markers and aborted records that one read passes over. A producer may abort any number of records."""


class Sink(Protocol):
    """Accepts records until it is full."""

    def room(self) -> int:
        """Remaining bytes; 0 if full."""

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        """Take as many records as fit, from `offset` on, without those before `not_before_ms`.

        The log owns the batches: copy, never modify. They are stamped and in offset order; the first holds `offset`.

        Returns:
            The offset after the last record taken or skipped; `offset` if the sink was already full.
        """


async def read(
    partition: Source,
    offset: int,
    sink: Sink,
    not_before_ms: int | None = None,
    *,
    large_reads: ReadBudget | None = None,
    isolation: Isolation = UNCOMMITTED,
) -> int:
    """Read until the sink is full or the visible end is reached. Return the next offset.

    `not_before_ms` is as in `Sink.take`. `large_reads` is the budget for larger records than readers expect, if any.
    A read of committed records leaves out markers and aborted records, and ends after `MOST_HIDDEN` bytes of them.

    Raises:
        OffsetOutOfRange: `offset` is before the log start or after the log end.
        UnknownTopic: the topic was deleted.
        StorageUnavailable: Redis does not respond and the sink has no records yet.
    """
    partition.check_readable(offset)
    began = offset
    if isolation != UNCOMMITTED:
        sink = _CommittedSink(sink, partition)
    while offset < partition.visible_end(isolation) and (room := sink.room()) > 0:
        if partition.cached(offset) and (isolation == UNCOMMITTED or offset >= partition.aborted_from):
            wanted = min(room, _LISTED) if partition.cached(offset, ahead=False) else room
            pieces, _ = partition.read_cached(offset, wanted, whole_first=True, isolation=isolation)
            following = await sink.take(partition, pieces, offset, not_before_ms) if pieces else None
        else:
            try:
                following = await _take_stored(
                    partition, offset, room, sink, not_before_ms, large_reads or ReadBudget(), isolation
                )
            except StorageUnavailable:
                if offset == began:
                    raise
                # Return what the sink has. The next read raises the error.
                break
        if following is None:
            # Retention or a deletion removed the records.
            partition.check_readable(offset)
            break
        if following <= offset:
            break
        offset = following
    return offset


async def _take_stored(
    partition: Source,
    offset: int,
    room: int,
    sink: Sink,
    not_before_ms: int | None,
    large_reads: ReadBudget,
    isolation: Isolation,
) -> int | None:
    more = 0
    while True:
        async with large_reads.held(more):
            try:
                pieces, _ = await partition.read_stored(
                    offset, room, first=more or max(room, _USUAL_BYTES), isolation=isolation
                )
            except NeedsRoom as wanted:
                more = wanted.size
                continue
            return await sink.take(partition, pieces, offset, not_before_ms) if pieces else None


class _CommittedSink:
    """Passes committed records on to a sink."""

    def __init__(self, sink: Sink, partition: Source) -> None:
        self._sink = sink
        self._partition = partition
        self._hidden = 0
        """Bytes that were left out."""
        self._local_start = 0
        """First offset in Redis when the last read began."""

    def room(self) -> int:
        self._local_start = self._partition.local_start
        return self._sink.room() if self._hidden < MOST_HIDDEN else 0

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        if not any(map(is_transactional, batches)):
            return await self._sink.take(partition, batches, offset, not_before_ms)
        end = next_offset(batches)
        aborted = await aborted_transactions(partition, offset, end, partial(producers_of, batches))
        if not aborted_are_known(partition, offset, end, self._local_start):
            return offset
        hidden = HiddenBatches(aborted)
        kept = [batch for batch in batches if batch not in hidden]
        self._hidden += sum(map(len, batches)) - sum(map(len, kept))
        if not kept:
            return end
        following = await self._sink.take(partition, kept, offset, not_before_ms)
        return end if following == next_offset(kept) else following


async def aborted_transactions(
    partition: Readable, offset: int, end: int, producers: Producers | None = None
) -> list[AbortedTransaction]:
    """Return the aborted transactions of a range that was read. Raises StorageUnavailable.

    See `Readable.aborted` for `producers`.
    """
    while True:
        before = partition.aborted_from
        older = await partition.aborted_before(offset, before, end, producers) if offset < before else []
        # Memory may have forgotten more of them in the meantime.
        if partition.aborted_from <= max(offset, before):
            return [*older, *partition.aborted(max(offset, before), end, producers)]
