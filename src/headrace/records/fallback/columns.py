"""Columns of the records of many batches, gathered through aiokafka's code: `_compiled.Columns` in Python."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.records.fallback import aiokafka_columns
from headrace.records.fallback.header import Buffer

# What a row adds beside its bytes; the C code counts alike, so that both cut at the same rows.
_FIXED_ROW_BYTES = 28
_FIXED_HEADER_BYTES = 8
_LARGEST = 2**63 - 1

PlainHeaders = list[tuple[str, bytes | None]]


def _saturated(number: int) -> int:
    return max(-_LARGEST - 1, min(_LARGEST, number))


@dataclass(slots=True)
class Rows:
    """The columns as lists of one length; `headers` is empty when nobody asked for them."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    """Microseconds since the epoch."""
    timestamp_types: list[int] = field(default_factory=list)
    headers: list[PlainHeaders | None] = field(default_factory=list)


class PureColumns:
    """Lists that grow by a batch at a time: `open` a batch, `fill` until it says True, `take` when it says False."""

    def __init__(self, max_rows: int, max_bytes: int, include_headers: bool) -> None:
        if not 1 <= max_rows <= 2**24 or not 1 <= max_bytes <= 2**30:
            raise ValueError("Columns: 1 to 16777216 rows, 1 to 1073741824 bytes")
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._include_headers = include_headers
        self._source: Iterator[Any] = iter(())
        self._waiting: Any = None  # a record that did not fit any more
        self._first_offset = 0
        self._end_offset = 0
        self._timestamp_type = 0
        self._rows = Rows()
        self._size = 0

    @property
    def rows(self) -> int:
        """Rows in the columns."""
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
        """Start on a batch's decompressed records section; rows from `first_offset` to before `end_offset` count."""
        fixed_timestamp = base_timestamp if log_append_time else None
        self._source = aiokafka_columns.read(
            payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp
        )
        self._waiting = None
        self._timestamp_type = int(log_append_time)
        self._first_offset = first_offset
        self._end_offset = end_offset

    def fill(self) -> bool:
        """Take records until the batch has no more (True) or the columns are full (False). Raises CorruptBatch."""
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
        """The rows so far; the columns are empty then."""
        taken, self._rows, self._size = self._rows, Rows(), 0
        return taken
