"""Stored batches to Arrow, with what is to happen when one of them cannot be read."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.client.errors import CorruptLog
from headrace.client.offsets import Range
from headrace.records.batch import Buffer
from headrace.records.errors import BatchError
from headrace.spark.source.topic_log import Unreadable

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_BYTES: Final = 4 << 20


def decode(
    batches: Iterable[tuple[int, Buffer]], offsets: Range, *, include_headers: bool, unreadable: Unreadable | None
) -> "Iterator[pa.RecordBatch]":
    """The records of the batches (base offset, bytes) that lie in the range.

    A batch that cannot be read is left out whole, whichever record of it is the bad one: a batch that is read again has
    the same rows.

    Raises:
        CorruptLog: a batch cannot be read, and nobody is to be told of it instead.
    """
    from headrace.records import arrow  # noqa: PLC0415  # pyarrow, where records are read and nowhere else

    bounds: dict[str, Any] = {
        "topic": offsets.partition.topic,
        "partition": offsets.partition.partition,
        "first_offset": offsets.start,
        "end_offset": offsets.end,
        "include_headers": include_headers,
    }
    if unreadable is not None:
        for chunk in _chunks(batches):
            yield from _tolerant(chunk, offsets, unreadable, bounds)
        return
    try:
        yield from arrow.decode(batches, **bounds)
    except BatchError as error:
        raise CorruptLog(
            f"{offsets.partition} has a batch that cannot be read, between offsets {offsets.start} and {offsets.end}: "
            f"{error}; set unreadableBatches=skip (the archive: --skip-unreadable) to go on without it"
        ) from error


def _tolerant(
    chunk: list[tuple[int, Buffer]], offsets: Range, unreadable: Unreadable, bounds: dict[str, Any]
) -> "list[pa.RecordBatch]":
    """A chunk's rows: decoded as one, or, when something in it cannot be read, batch by batch."""
    from headrace.records import arrow  # noqa: PLC0415

    try:
        return list(arrow.decode(chunk, **bounds))
    except BatchError:
        rows = []
        for base_offset, batch in chunk:
            try:
                rows += list(arrow.decode([(base_offset, batch)], **bounds))
            except BatchError as error:
                unreadable(offsets.partition, base_offset, bytes(batch), error)
        return rows


def _chunks(batches: Iterable[tuple[int, Buffer]]) -> Iterator[list[tuple[int, Buffer]]]:
    chunk: list[tuple[int, Buffer]] = []
    size = 0
    for base_offset, batch in batches:
        chunk.append((base_offset, batch))
        size += len(batch)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
