"""Read a partition into a sink, which is a partial API response with a remaining size."""

from typing import Protocol

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Source
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.topics.errors import StorageUnavailable

_USUAL_BYTES = 1 << 20
"""A record of up to this size needs no memory reservation."""
_LISTED = 32 << 10
"""Bytes of the newest batches passed to a sink at once. Many requests may read thousands of small batches in one
turn of the event loop.
"""


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

    Raises:
        OffsetOutOfRange: `offset` is before the log start or after the log end.
        UnknownTopic: the topic was deleted.
        StorageUnavailable: Redis does not respond and the sink has no records yet.
    """
    partition.check_readable(offset)
    began = offset
    while offset < partition.visible_end(isolation) and (room := sink.room()) > 0:
        if partition.cached(offset):
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
