"""The records of a batch one by one: for what must look inside, such as a timestamp search or an API that shows them.

Batches are the log's: checked when they came. Their records were not; a batch that cannot be read is CorruptBatch.
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
    """Milliseconds since the epoch, -1 for none; the broker's when the batch has log append time."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def fixed_timestamp(header: BatchHeader) -> int | None:
    """The timestamp (ms) that all records of the batch have, or None when each has its own."""
    return header.max_timestamp if header.timestamp_type else None


def payload(header: BatchHeader, batch: Buffer, limit: int = LIMIT) -> Buffer:
    """The records section, decompressed. Raises UnknownCodec, CorruptBatch, and BatchTooLarge above `limit` bytes."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE:], limit)


def records(batch: Buffer, base_offset: int, *, limit: int = LIMIT) -> list[Record]:
    """The records of a batch that lies at `base_offset`, whatever is stamped on it; a control batch has none.

    Raises:
        BatchError: the batch cannot be read, or takes more than `limit` bytes decompressed.
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
    """Each with the number of its headers, of which it may have the first only."""
    following: int
    """The offset to go on from."""
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
    """A few of a batch's records from an offset on, those whose keys have `part` in them. Other threads run meanwhile.

    Args:
        batch: whatever is stamped on it.
        base_offset: where it lies.
        first_offset: records before it are passed over.
        part: empty: of all keys, and without one.
        most: so many records at most.
        most_bytes: once their keys, values and headers have so many bytes, no other record is taken.
        most_headers: which a record is given with.
        limit: bytes that the batch may take decompressed.

    Raises:
        BatchError: as `records`; what lies behind the last record is not read.
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
    """Offset and timestamp (ms) of the first record with this timestamp or a later one; None when there is none.

    Other threads run meanwhile.

    Raises:
        BatchError: as `records`; what lies behind the record found is not read.
    """
    return search(batch, base_offset, 0, timestamp)[0]


def max_timestamp(batch: Buffer, base_offset: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first record with the batch's largest timestamp; None without records.

    As `find_timestamp`.
    """
    return search(batch, base_offset, 0, None)[0]


def search(
    batch: Buffer, base_offset: int, first_offset: int, not_before: int | None, *, limit: int = LIMIT
) -> tuple[tuple[int, int] | None, int]:
    """As `find_timestamp`, or `max_timestamp` where `not_before` is None; and the records' size in bytes, decompressed.

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
