"""Records read by aiokafka's compiled code: what `_compiled` does, on machines without the extension.

aiokafka is imported when it is first needed, because it brings asyncio and all of its client along (0.2 s).
"""

from collections.abc import Callable, Iterator
from functools import cache
from struct import Struct
from typing import Any, TypeVar

from headrace.records.errors import CorruptBatch
from headrace.records.fallback.header import Buffer

_R = TypeVar("_R")

_HEADER = Struct(">qiibIhiqqqhii")
_SLACK = 64
_SHORTEST = 7  # bytes of a record: one for each of its seven fields
_ERRORS = (ValueError, IndexError, OverflowError, MemoryError, AssertionError)


@cache
def _reader() -> tuple[Callable[[Buffer], Any], type[Exception]]:
    from aiokafka.errors import CorruptRecordException  # noqa: PLC0415
    from aiokafka.record.default_records import DefaultRecordBatch  # noqa: PLC0415

    return DefaultRecordBatch, CorruptRecordException


def read(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
) -> Iterator[Any]:
    """Aiokafka's records (offset, timestamp, key, value, headers) out of a decompressed records section.

    A batch around the payload is made up, uncompressed. aiokafka looks at lengths before it follows them but reads
    varints without looking where its buffer ends, hence zeros after the end: they stop it within its own memory.

    Raises:
        CorruptBatch: a length that leads nowhere, bytes left over, offsets that do not go up.
    """
    if not 0 <= count <= len(payload) // _SHORTEST:
        raise CorruptBatch(f"{count} records in {len(payload)} bytes")
    size = 61 + len(payload)
    batch = bytearray(size + _SLACK)
    attributes = 0 if fixed_timestamp is None else 0x08
    max_timestamp = base_timestamp if fixed_timestamp is None else fixed_timestamp
    fields = (last_offset_delta, base_timestamp, max_timestamp, -1, -1, -1, count)
    _HEADER.pack_into(batch, 0, base_offset, size - 12, 0, 2, 0, attributes, *fields)
    batch[61:size] = payload
    batch_class, corrupt = _reader()
    previous = base_offset - 1
    last = base_offset + last_offset_delta
    try:
        for record in batch_class(memoryview(batch)[:size]):
            offset = record.offset
            if not previous < offset <= last:
                raise CorruptBatch(f"a record at offset {offset} between {previous} and the batch's last, {last}")
            previous = offset
            yield record
    except (corrupt, *_ERRORS) as error:
        raise CorruptBatch(f"records cannot be read: {error}") from None


def find(
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    first_offset: int,
    not_before: int | None,
) -> tuple[int, int] | None:
    """Offset and timestamp of a record at or behind `first_offset`; None when there is none.

    The first one that is not before a time or, where that is None, the first of those with the largest timestamp.

    Raises:
        CorruptBatch: the records up to there cannot be read.
    """
    latest: tuple[int, int] | None = None
    source = read(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp)
    for record in source:
        if record.offset < first_offset:
            continue
        if not_before is None:
            if latest is None or record.timestamp > latest[1]:
                latest = record.offset, record.timestamp
        elif record.timestamp >= not_before:
            return record.offset, record.timestamp
    return latest


def records(
    kind: Callable[..., _R],
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
) -> list[_R]:
    """All records of a batch as `kind(offset, timestamp, key, value, headers)`. Raises CorruptBatch."""
    return [
        kind(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in read(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp)
    ]


def some(
    kind: Callable[..., _R],
    payload: Buffer,
    count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    fixed_timestamp: int | None,
    first_offset: int,
    part: bytes,
    most: int,
    most_bytes: int,
    most_headers: int,
) -> tuple[list[tuple[_R, int]], int, int, int]:
    """A few records of a batch, as `records` has them, each with how many headers it has; and where to go on.

    That is an offset, with how many bytes of the payload may be left out then, and how many records there are behind
    them: of a batch in many parts C code reads none twice. This twin reads them all again.

    They are at or behind `first_offset`, with keys that have `part` in them where it is not empty: `most` of them at
    most, none after `most_bytes` of keys, values and headers, each with `most_headers` headers at most.

    Raises:
        CorruptBatch: the records up to there cannot be read.
    """
    found: list[tuple[_R, int]] = []
    size = 0
    for record in read(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp):
        if record.offset < first_offset or (part and part not in (record.key or b"")):
            continue
        if len(found) >= most or (size and size >= most_bytes):
            return found, record.offset, 0, count
        headers = tuple(record.headers)
        made = kind(record.offset, record.timestamp, record.key, record.value, headers[:most_headers])
        found.append((made, len(headers)))
        size += len(record.key or b"") + len(record.value or b"")
        size += sum(len(name.encode()) + len(value or b"") for name, value in headers)
    return found, base_offset + last_offset_delta + 1, len(payload), 0
