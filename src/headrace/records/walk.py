"""Iterate over the records of a batch. Unreadable ones raise CorruptBatch."""

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
    """Return the common timestamp (ms) of all records, or None."""
    return header.max_timestamp if header.timestamp_type else None


def payload(header: BatchHeader, batch: Buffer, limit: int = LIMIT) -> Buffer:
    """Return the decompressed records. Raises UnknownCodec, CorruptBatch, and BatchTooLarge."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE:], limit)


def records(batch: Buffer, base_offset: int, *, limit: int = LIMIT) -> list[Record]:
    """Return the records of a batch at `base_offset`, none for a control batch. Raises BatchError."""
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
    """Return some records from `first_offset` on whose keys contain `part`; other threads can run.

    They are at most `most`, none after `most_bytes` of keys, values and headers, with at most `most_headers` headers
    each. Raises BatchError.
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
    """Return offset and timestamp (ms) of the first record at or after a timestamp, or None.

    Other threads can run. Raises BatchError.
    """
    return search(batch, base_offset, 0, timestamp)[0]


def max_timestamp(batch: Buffer, base_offset: int) -> tuple[int, int] | None:
    """Return offset and timestamp (ms) of the first record with the largest timestamp, or None."""
    return search(batch, base_offset, 0, None)[0]


def search(
    batch: Buffer, base_offset: int, first_offset: int, not_before: int | None, *, limit: int = LIMIT
) -> tuple[tuple[int, int] | None, int]:
    """As `find_timestamp`, or `max_timestamp` without `not_before`; also return the decompressed size.

    As in Kafka, a transaction marker is found as well.
    """
    header = peek(batch)
    if header.is_control:
        fits = base_offset >= first_offset and (not_before is None or header.max_timestamp >= not_before)
        return ((base_offset, header.max_timestamp) if fits else None), 0
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
