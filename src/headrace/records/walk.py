"""Iterate over the records of a batch, for timestamp searches and APIs that show records.

Batches were checked on arrival, their records were not. An unreadable batch raises CorruptBatch.
"""

from typing import NamedTuple

from headrace.records import accelerator
from headrace.records.batch import BatchHeader, peek
from headrace.records.compression import LIMIT, decompress
from headrace.records.fallback.header import HEADER_SIZE, Buffer


class Record(NamedTuple):
    """A record as a consumer sees it."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch, -1 for none; the broker's time with log append time."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def fixed_timestamp(header: BatchHeader) -> int | None:
    """Return the common timestamp (ms) of all records, or None if each has its own."""
    return header.max_timestamp if header.timestamp_type else None


def payload(header: BatchHeader, batch: Buffer, limit: int = LIMIT) -> Buffer:
    """Return the decompressed records. Raises UnknownCodec, CorruptBatch, and BatchTooLarge above `limit` bytes."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE:], limit)


def records(batch: Buffer, base_offset: int, *, limit: int = LIMIT) -> list[Record]:
    """Return the records of a batch at `base_offset`, which overrides its header; a control batch has none.

    Raises:
        BatchError: the batch is unreadable, or exceeds `limit` bytes decompressed.
    """
    header = peek(batch)
    if header.is_control:
        return []
    return accelerator.records(
        Record,
        payload(header, batch, limit),
        header.count,
        header.last_offset_delta,
        base_offset,
        header.base_timestamp,
        fixed_timestamp(header),
    )


class Some(NamedTuple):
    """A few records of a batch."""

    records: list[tuple[Record, int]]
    """Each with its total number of headers, which may exceed the headers returned."""
    following: int
    """Offset at which to continue."""
    decompressed: int
    """Bytes of the batch's records."""


def some(
    batch: Buffer,
    base_offset: int,
    first_offset: int,
    part: bytes,
    *,
    most: int,
    most_bytes: int,
    most_headers: int,
    limit: int,
) -> Some:
    """Return some records from an offset whose keys contain `part`; other threads can run.

    Args:
        batch: the batch; its base offset field is ignored.
        base_offset: actual base offset.
        first_offset: earlier records are skipped.
        part: empty: all records.
        most: maximum number of records.
        most_bytes: stop once keys, values and headers have this many bytes.
        most_headers: maximum headers returned per record.
        limit: maximum bytes of the batch decompressed.

    Raises:
        BatchError: as `records`; bytes after the last record are not read.
    """
    header = peek(batch)
    if header.is_control:
        return Some([], base_offset + header.span, 0)
    section = payload(header, batch, limit)
    found, following, _, _ = accelerator.some(
        Record,
        section,
        header.count,
        header.last_offset_delta,
        base_offset,
        header.base_timestamp,
        fixed_timestamp(header),
        first_offset,
        part,
        most,
        most_bytes,
        most_headers,
    )
    return Some(found, following, len(section))


def find_timestamp(batch: Buffer, base_offset: int, timestamp: int) -> tuple[int, int] | None:
    """Return offset and timestamp (ms) of the first record at or after a timestamp, or None; other threads can run.

    Raises:
        BatchError: as `records`; bytes after the record found are not read.
    """
    return search(batch, base_offset, 0, timestamp)[0]


def max_timestamp(batch: Buffer, base_offset: int) -> tuple[int, int] | None:
    """Return offset and timestamp (ms) of the first record with the largest timestamp; None without records.

    See `find_timestamp`.
    """
    return search(batch, base_offset, 0, None)[0]


def search(
    batch: Buffer, base_offset: int, first_offset: int, not_before: int | None, *, limit: int = LIMIT
) -> tuple[tuple[int, int] | None, int]:
    """Search as `find_timestamp`, or `max_timestamp` without `not_before`; also return the decompressed size.

    Raises:
        BatchError: as `find_timestamp`.
    """
    header = peek(batch)
    if header.is_control:
        return None, 0
    decompressed = payload(header, batch, limit)
    found = accelerator.find(
        decompressed,
        header.count,
        header.last_offset_delta,
        base_offset,
        header.base_timestamp,
        fixed_timestamp(header),
        first_offset,
        not_before,
    )
    return found, len(decompressed)
