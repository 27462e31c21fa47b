"""Reads a partition piece by piece into a sink: a half-built answer of an API, which says how much it still wants."""

from typing import Protocol

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Source
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.topics.errors import StorageUnavailable

_USUAL_BYTES = 1 << 20
"""A record may have as many without more ado."""
_LISTED = 32 << 10
"""Bytes of the newest batches that a sink is given at once: small ones are thousands, and hundreds may ask for them in
one turn of the loop, before the first takes any."""


class Sink(Protocol):
    """Takes records until it is full."""

    def room(self) -> int:
        """Bytes it still wants; 0: full."""

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        """Take records from `offset` on, as many as it wants.

        Args:
            partition: where they come from.
            batches: whole stamped record batches in offset order; the first holds `offset`. They belong to the log:
                what is kept must be copied, nothing may be written.
            offset: the first offset wanted. Records before it in the first batch are not.
            not_before_ms: records with an earlier timestamp are passed over; None: none are.

        Returns:
            The offset after the last record taken or passed over; `offset` itself when it is full before the first.
        """


async def read(
    partition: Source,
    offset: int,
    sink: Sink,
    not_before_ms: int | None = None,
    *,
    beside: ReadBudget | None = None,
    isolation: Isolation = UNCOMMITTED,
) -> int:
    """Read until the sink is full or the visible end is reached; the next offset to read.

    Args:
        partition: the partition.
        offset: where to begin.
        sink: takes the records.
        not_before_ms: see `Sink.take`.
        beside: what records are counted in that are larger than their readers know; None: nothing.
        isolation: how much the reader sees.

    Raises:
        OffsetOutOfRange: `offset` is below the log start or beyond the log end.
        UnknownTopic: the topic was deleted.
        StorageUnavailable: Redis does not answer, and nothing was taken before.
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
                    partition, offset, room, sink, not_before_ms, beside or ReadBudget(), isolation
                )
            except StorageUnavailable:
                if offset == began:
                    raise
                # What the sink has taken counts; the next read says what is wrong.
                break
        if following is None:
            # Retention, or a deletion, came between.
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
    beside: ReadBudget,
    isolation: Isolation,
) -> int | None:
    """Read from storage, and what the sink answers; None when there was nothing."""
    more = 0
    while True:
        async with beside.held(more):
            try:
                pieces, _ = await partition.read_stored(
                    offset, room, first=more or max(room, _USUAL_BYTES), isolation=isolation
                )
            except NeedsRoom as wanted:
                more = wanted.size
                continue
            return await sink.take(partition, pieces, offset, not_before_ms) if pieces else None
