"""Records sections written in Python; `_compiled.encode` writes the same bytes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from headrace.records.fallback.header import Buffer

# Numbers of records: zigzag varints of Java's longs.
_SHORT = tuple(bytes([number]) for number in range(128))


def varint(number: int) -> bytes:
    """Return a zigzag varint of up to 64 bits."""
    number = number << 1 ^ number >> 63
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def wrap(number: int) -> int:
    """Return the number as a Java long. Readers wrap, too, when they add the base timestamp."""
    return (number + 2**63) % 2**64 - 2**63


Headers = Sequence[tuple[str, bytes | None]]
Fields = tuple[bytes | None, bytes | None, int, Headers]
"""Key, value, timestamp (ms), headers of a record."""

ArrowColumn = tuple[Buffer | None, Buffer, Buffer, int]
"""Byte strings: validity bits or None, int32 offsets, data, and the index of row 0."""

ArrowNumbers = tuple[Buffer, int]
"""int64 without nulls: data, and the index of row 0."""
ArrowHeaders = tuple[Buffer | None, Buffer, int, ArrowColumn, ArrowColumn]
"""Lists of (name, value): validity or None, int32 offsets, the index of row 0, names and values."""


class Section(NamedTuple):
    """A records section of rows."""

    records: bytes
    following: int
    """The next row."""
    last_delta: int
    """Offset of the last record minus that of the first."""
    base_timestamp: int
    """Milliseconds, of the first record."""
    max_timestamp: int


def _check_int64(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} does not fit 64 bits")
    return number


_NULL = varint(-1)


def encode(records: Sequence[Fields], base_timestamp: int, /) -> bytes:
    """Return the section of records with offset deltas from 0."""
    _check_int64(base_timestamp)
    out: list[bytes] = []
    for offset_delta, (key, value, timestamp, headers) in enumerate(records):
        parts = [b"\x00", varint(wrap(_check_int64(timestamp) - base_timestamp)), varint(offset_delta)]
        parts += (_NULL,) if key is None else (varint(len(key)), key)
        parts += (_NULL,) if value is None else (varint(len(value)), value)
        parts.append(varint(len(headers)))
        for name, content in headers:
            text = name.encode()
            parts += (varint(len(text)), text)
            parts += (_NULL,) if content is None else (varint(len(content)), content)
        body = b"".join(parts)
        out += (varint(len(body)), body)
    return b"".join(out)


def encode_columns(
    key: ArrowColumn | None, value: ArrowColumn | None, start: int, stop: int, max_bytes: int, /
) -> tuple[bytes, int]:
    """Return the section of rows from `start` on, all at the base timestamp, and the next row.

    It has at least one row, and at most `max_bytes` unless a single row is larger. Raises ValueError.
    """
    if start < 0 or stop <= start or max_bytes < 1:
        raise ValueError("no rows to encode, or no room")
    keys, values = _rows(key, start, stop), _rows(value, start, stop)
    out: list[bytes] = []
    used = 0
    for delta, (name, content) in enumerate(zip(keys, values, strict=True)):
        record = _one(delta, name, content)
        if out and used + len(record) > max_bytes:
            return b"".join(out), start + delta
        out.append(record)
        used += len(record)
    return b"".join(out), stop


def _one(offset_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    parts = [b"\x00\x00", varint(offset_delta)]
    parts += (_NULL,) if key is None else (varint(len(key)), key)
    parts += (_NULL,) if value is None else (varint(len(value)), value)
    parts.append(b"\x00")
    body = b"".join(parts)
    return varint(len(body)) + body


def _rows(column: ArrowColumn | None, start: int, stop: int) -> list[bytes | None]:
    if column is None:
        return [None] * (stop - start)
    validity, offsets, data, first = column
    numbers = memoryview(offsets).cast("B")
    edges = numbers[: len(numbers) // 4 * 4].cast("i")
    last = first + stop
    if first < 0 or len(edges) <= last or (validity is not None and len(validity) < (last + 7) // 8):
        raise ValueError("a column has fewer rows than asked for")
    found: list[bytes | None] = []
    for row in range(first + start, last):
        if validity is not None and not validity[row // 8] >> (row % 8) & 1:
            found.append(None)
            continue
        low, high = edges[row], edges[row + 1]
        if not 0 <= low <= high <= len(data):
            raise ValueError("a column's offsets lie outside of its data")
        found.append(bytes(data[low:high]))
    return found


def encode_rows(
    key: ArrowColumn | None,
    value: ArrowColumn | None,
    headers: ArrowHeaders | None,
    offsets: ArrowNumbers,
    timestamps: ArrowNumbers,
    start: int,
    stop: int,
    max_bytes: int,
    /,
) -> Section:
    """Return the section of rows with offsets, timestamps (microseconds, truncated to ms) and headers.

    It has at least one row, and ends before `max_bytes` or an offset delta of 2^31 - 1. Raises ValueError.
    """
    if start < 0 or stop <= start or max_bytes < 1:
        raise ValueError("no rows to encode, or no room")
    keys, values = _rows(key, start, stop), _rows(value, start, stop)
    pairs = _header_rows(headers, start, stop)
    places = _numbers(offsets, start, stop)
    times = [number // 1000 for number in _numbers(timestamps, start, stop)]
    out: list[bytes] = []
    used, last = 0, -1
    for row, place in enumerate(places):
        delta = place - places[0]
        if delta <= last:
            raise ValueError("offsets do not go up")
        if delta >= 2**31 - 1:
            break
        parts = [b"\x00", varint(wrap(times[row] - times[0])), varint(delta)]
        for content in (keys[row], values[row]):
            parts += (_NULL,) if content is None else (varint(len(content)), content)
        parts.append(varint(len(pairs[row])))
        for name, content in pairs[row]:
            parts += (varint(len(name)), name)
            parts += (_NULL,) if content is None else (varint(len(content)), content)
        body = b"".join(parts)
        record = varint(len(body)) + body
        if out and used + len(record) > max_bytes:
            break
        out.append(record)
        used += len(record)
        last = delta
    return Section(b"".join(out), start + len(out), last, times[0], max(times[: len(out)]))


def _numbers(column: ArrowNumbers, start: int, stop: int) -> list[int]:
    data, first = column
    numbers = memoryview(data).cast("B")
    numbers = numbers[: len(numbers) // 8 * 8].cast("q")
    if first < 0 or len(numbers) < first + stop:
        raise ValueError("a column has fewer rows than asked for")
    return list(numbers[first + start : first + stop])


def _header_rows(column: ArrowHeaders | None, start: int, stop: int) -> list[list[tuple[bytes, bytes | None]]]:
    if column is None:
        return [[] for _ in range(start, stop)]
    validity, data, first, name_column, value_column = column
    edges = memoryview(data).cast("B")
    edges = edges[: len(edges) // 4 * 4].cast("i")
    last = first + stop
    if first < 0 or len(edges) <= last or (validity is not None and len(validity) < (last + 7) // 8):
        raise ValueError("a column has fewer rows than asked for")
    if edges[last] < 0:
        raise ValueError("a column's offsets lie outside of its data")
    names, values = _rows(name_column, 0, edges[last]), _rows(value_column, 0, edges[last])
    found: list[list[tuple[bytes, bytes | None]]] = []
    for row, (low, high) in enumerate(pairwise(edges[first + start : last + 1]), first + start):
        if validity is not None and not validity[row // 8] >> (row % 8) & 1:
            found.append([])
            continue
        if not 0 <= low <= high <= edges[last]:
            raise ValueError("a column's offsets lie outside of its data")
        found.append([(_name(names[pair]), values[pair]) for pair in range(low, high)])
    return found


def _name(name: bytes | None) -> bytes:
    if name is None:
        raise ValueError("a header without a name")
    return name
