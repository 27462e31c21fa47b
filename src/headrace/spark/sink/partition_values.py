"""Split a batch by partition, and format partition values for Delta's log and folder names.

Rows are found by their partition's number, not by comparison: NaN equals nothing, and -0.0 equals 0.0.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.errors import TableError

Partition = tuple[tuple[str, str | None], ...]
"""Columns and their values as in Delta's log."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_NAME: Final = 255
"""Bytes of a folder's name, on most file systems."""
_LONGEST_PATH: Final = 700
"""Bytes of all folders: an object store's key has 1,024, including the table's path."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def split(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield the rows of each partition in order, with all columns. Raise TableError for an impossible value."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in names:
        found = pc.dictionary_encode(_identity(rows.column(name)), null_encoding="encode")
        codes = codes * max(1, len(found.dictionary)) + found.indices.to_numpy(zero_copy_only=False)
        # Small numbers again, or many columns would exceed 64 bits.
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    if not len(ends):
        yield _partition(rows, names), rows
        return
    ordered = rows.take(pa.array(order))
    for start, end in zip([0, *ends.tolist()], [*ends.tolist(), rows.num_rows], strict=True):
        part = ordered.slice(start, end - start)
        yield _partition(part, names), part


def folder(partition: Partition) -> str:
    """Return a partition's folder in Hive's notation, or "" if a name would be too long."""
    parts = [f"{quote(name, safe='')}={_quoted(value)}" for name, value in partition]
    path = "/".join(parts)
    return "" if len(path) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in parts) else path


def _quoted(value: str | None) -> str:
    return _NO_VALUE if value is None else quote(value, safe="")


def check_types(columns: pa.Schema, names: Sequence[str]) -> None:
    """Raise TableError for a column by which Delta cannot partition."""
    for name in names:
        kind = columns.field(name).type
        if pa.types.is_nested(kind):
            raise TableError(f"option 'partitionBy' names {name!r}, which is {kind}: name columns of single values")


def _identity(column: pa.Array) -> pa.Array:
    """Return different bits for different values: NaN has many and counts as one."""
    if not pa.types.is_floating(column.type):
        return column
    bits = pa.int32() if column.type == pa.float32() else pa.int64()
    nan = pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, column).view(bits)


def _partition(part: pa.RecordBatch, names: Sequence[str]) -> Partition:
    return tuple((name, _serialized(name, part.column(name)[0])) for name in names)


def _serialized(name: str, value: pa.Scalar) -> str | None:
    """Return a value as in Delta's log. Raise TableError."""
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_timestamp(kind):
        return _moment(name, value.value, kind)
    try:
        return _plain(name, value.as_py())
    except (ValueError, OverflowError):
        raise _refused(name, f"the date {value.cast(pa.int32()).as_py()} days after 1970-01-01", _YEARS) from None


def _plain(name: str, value: object) -> str:
    match value:
        case bytes():
            return _decoded(name, value)
        case str():
            return _text(name, value)
        case float():
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), str(value))
        case Decimal():
            return _decimal(name, value)
        case bool():
            return str(value).lower()
    return str(value)


_YEARS: Final = "a partition's value lies in the years 1 to 9999: partition by another column"


def _moment(name: str, microseconds: int, kind: pa.DataType) -> str:
    try:
        moment = (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None)
    except OverflowError:
        raise _refused(name, f"the time {microseconds} microseconds after 1970-01-01", _YEARS) from None
    # Without a time zone, readers would use their session's.
    return moment.isoformat("T", "microseconds") + "Z" if kind.tz is not None else moment.isoformat(" ", "microseconds")


def _text(name: str, value: str) -> str:
    if value == "":
        hint = "Delta reads it as null: replace it, for example with nullif(column, '')"
        raise _refused(name, "an empty value", hint)
    if value == _NO_VALUE:
        raise _refused(name, value, "readers that go by the folders' names take it for null")
    return value


def _decoded(name: str, value: bytes) -> str:
    try:
        return _text(name, value.decode())
    except UnicodeDecodeError:
        hint = "Delta's log holds text, which readers take for UTF-8: partition by hex(column) instead"
        raise _refused(name, f"the bytes {value[:16].hex()}", hint) from None


def _decimal(name: str, value: Decimal) -> str:
    if value < 0 and value != value.to_integral_value():
        raise _refused(name, f"{value:f}", "delta-rs cannot read a negative fraction back: partition by a string of it")
    return f"{value:f}"


def _refused(name: str, value: str, hint: str) -> TableError:
    return TableError(f"column {name!r} has {value}, which cannot be a partition's value: {hint}")
