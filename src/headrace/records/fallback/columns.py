"""Records and columns in Python, read by aiokafka's compiled code.

aiokafka is imported at the first use, as it imports asyncio and its client (0.2 s).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import Any, TypeVar

from headrace.records.errors import CorruptBatch
from headrace.records.fallback.header import Buffer

# Bytes that a row counts in addition to its data, as in the C code.
_FIXED_ROW_BYTES = 28
_FIXED_HEADER_BYTES = 8
_LARGEST = 2**63 - 1

PlainHeaders = list[tuple[str, bytes | None]]


def _saturated(number: int) -> int:
    return max(-_LARGEST - 1, min(_LARGEST, number))


@dataclass(slots=True)
class Rows:
    """Columns as lists of the same length; `headers` may be empty."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """Microseconds since the epoch."""
    timestamp_types: list[int] = field(default_factory=list)
    headers: list[PlainHeaders | None] = field(default_factory=list)


class PureColumns:
    """See `accelerator.ColumnBuilder`."""

    def __init__(self, max_rows: int, max_bytes: int, include_headers: bool) -> None:
        if not 1 <= max_rows <= 2**24 or not 1 <= max_bytes <= 2**30:
            raise ValueError("Columns: 1 to 16777216 rows, 1 to 1073741824 bytes")
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._include_headers = include_headers
        self._source: Iterator[Any] = iter(())
        self._waiting: Any = None  # a record that did not fit
        self._first_offset = 0
        self._end_offset = 0
        self._timestamp_type = 0
        self._rows = Rows()
        self._size = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._rows.offsets)

    def open(
        self,
        payload: Buffer,
        count: int,
        last_offset_delta: int,
        base_offset: int,
        base_timestamp: int,
        log_append_time: bool,
        first_offset: int,
        end_offset: int,
        /,
    ) -> None:
        """See `accelerator.ColumnBuilder`."""
        fixed_timestamp = base_timestamp if log_append_time else None
        self._source = read(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp)
        self._waiting = None
        self._timestamp_type = int(log_append_time)
        self._first_offset = first_offset
        self._end_offset = end_offset

    def fill(self) -> bool:
        """See `accelerator.ColumnBuilder`."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._put(waiting, self._size_of(waiting))
        for record in self._source:
            if record.offset >= self._end_offset:
                break
            if record.offset < self._first_offset:
                continue
            size = self._size_of(record)
            if self._rows.offsets and (
                len(self._rows.offsets) >= self._max_rows or self._size + size > self._max_bytes
            ):
                self._waiting = record
                return False
            self._put(record, size)
        self._source = iter(())
        return True

    def _size_of(self, record: Any) -> int:
        size = _FIXED_ROW_BYTES + len(record.key or b"") + len(record.value or b"")
        if self._include_headers:
            size += sum(_FIXED_HEADER_BYTES + len(name.encode()) + len(value or b"") for name, value in record.headers)
        return size

    def _put(self, record: Any, size: int) -> None:
        self._size += size
        rows = self._rows
        rows.keys.append(record.key)
        rows.values.append(record.value)
        rows.offsets.append(record.offset)
        timestamp = record.timestamp * 1000
        rows.timestamps.append(timestamp if -_LARGEST <= timestamp <= _LARGEST else _saturated(timestamp))
        rows.timestamp_types.append(self._timestamp_type)
        if self._include_headers:
            rows.headers.append(list(record.headers) or None)

    def take(self) -> Rows:
        """See `accelerator.ColumnBuilder`."""
        taken, self._rows, self._size = self._rows, Rows(), 0
        return taken


_R = TypeVar("_R")

_HEADER = Struct(">qiibIhiqqqhii")
_SLACK = 64
_SHORTEST = 7  # bytes of a record: one per field
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
    """Yield aiokafka's records of a decompressed section. Raises CorruptBatch.

    The payload is wrapped in an uncompressed batch. aiokafka reads varints beyond its buffer, so zeros stop it.
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
    """Return offset and timestamp of the first record at or after `first_offset` and `not_before`, or None.

    Without `not_before`, that of the first record with the largest timestamp. Raises CorruptBatch.
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
    """Return all records as `kind(offset, timestamp, key, value, headers)`. Raises CorruptBatch."""
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
    """Return some records with their numbers of headers, and the place to continue.

    That is an offset, the bytes of the payload before it, and the number of later records, with which C code reads no
    record twice. `most` counts records, and `most_bytes` their keys, values and headers. Raises CorruptBatch.
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
