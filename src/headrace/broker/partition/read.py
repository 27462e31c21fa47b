"""Reads a partition piece by piece into a sink: a half-built answer of an API, which says how much it still wants."""

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import Isolation, Source
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.records.batch import ATTRIBUTES_AT
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import StoredBatch

_USUAL_BYTES = 1 << 20
"""A record may have as many without more ado."""
_LISTED = 32 << 10
"""Bytes of the newest batches that a sink is given at once: small ones are thousands, and hundreds may ask for them in
one turn of the loop, before the first takes any."""
_COUNT_AT = 57
_COUNT = Struct(">i")
_SPAN = Struct(">q15xi")
"""Base offset and last offset delta, at the beginning of a batch."""


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
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
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
            pieces, _ = partition.read_cached(offset, wanted, whole_first=True)
            following = await sink.take(partition, pieces, offset, not_before_ms) if pieces else None
        else:
            try:
                following = await _take_stored(partition, offset, room, sink, not_before_ms, beside or ReadBudget())
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
    partition: Source, offset: int, room: int, sink: Sink, not_before_ms: int | None, beside: ReadBudget
) -> int | None:
    """Read from storage, and what the sink answers; None when there was nothing."""
    more = 0
    while True:
        async with beside.held(more):
            try:
                pieces, _ = await partition.read_stored(offset, room, first=more or max(room, _USUAL_BYTES))
            except NeedsRoom as wanted:
                more = wanted.size
                continue
            return await sink.take(partition, pieces, offset, not_before_ms) if pieces else None


def first_readable(cold_start: int | None, local_start: int) -> int:
    """Where a log begins for readers.

    Args:
        cold_start: where its archive begins; None: it is read from none.
        local_start: where it begins in Redis.
    """
    return local_start if cold_start is None else min(cold_start, local_start)


def count_records(batches: list[Buffer], *, has_gaps: bool) -> int:
    """How many records are in consecutive batches, by what their headers say.

    Where offsets have no gaps the first and the last header tell it: there may be thousands in between.
    """
    if has_gaps:
        return sum(_COUNT.unpack_from(batch, _COUNT_AT)[0] for batch in batches)
    return next_offset(batches) - int(_SPAN.unpack_from(batches[0])[0])


def next_offset(batches: list[Buffer]) -> int:
    """The offset behind consecutive batches, of which the last is by itself."""
    base_offset, last_delta = _SPAN.unpack_from(batches[-1])
    return int(base_offset + last_delta + 1)


def codecs(batches: list[Buffer]) -> Iterator[int]:
    """The compression of each batch, by its number."""
    return (batch[ATTRIBUTES_AT + 1] & 7 for batch in batches)


def fitting(stored: list[StoredBatch], limit: int) -> tuple[list[Buffer], int]:
    """The first batch, and as many behind it as fit into `limit` bytes without a gap; their size.

    There is a gap where retention came between two reads: whoever skipped it would not know what it has missed.
    """
    chunks: list[Buffer] = []
    total, following = 0, -1
    for found in stored:
        size = len(found.batch)
        if chunks and (total + size > limit or found.base_offset > following):
            break
        chunks.append(found.batch)
        total += size
        following = found.next_offset
    return chunks, total


def take(batches: "list[StoredBatch] | deque[StoredBatch]", limit: int) -> tuple[list[Buffer], int]:
    """Return batches of up to `limit` bytes, the first one in any case, and their size in bytes."""
    chunks: list[Buffer] = []
    size = 0
    for each in batches:
        if chunks and size + len(each.batch) > limit:
            break
        chunks.append(each.batch)
        size += len(each.batch)
    return chunks, size
