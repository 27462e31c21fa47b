"""Write data files of a table, with minimum, maximum and null count of every primitive column for Delta's log."""

import contextlib
import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.lakehouse.write.location import Place

_PREFIX: Final = 32
"""Characters of a text's bound, as in Delta."""
_IN_FOOTER: Final = 4000
"""Parquet's writer leaves out bounds above 4,096 bytes."""
_LARGEST: Final = "\U0010ffff"
_LARGEST_ASCII: Final = "\x7f"
_DAYS: Final = tuple(bound.toordinal() - date(1970, 1, 1).toordinal() for bound in (date.min, date.max))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS: Final = tuple(
    (bound.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) for bound in (datetime.min, datetime.max)
)
"""First and last time of Delta's log, in microseconds since 1970."""


@dataclass
class _Leaf:
    path: tuple[int, ...]
    names: tuple[str, ...]
    type: pa.DataType
    column: int
    """Its number among the Parquet file's columns."""
    nulls: int = 0
    low: Any = None
    high: Any = None

    @property
    def bounded(self) -> bool:
        return not (_is_binary(self.type) or pa.types.is_null(self.type))

    @property
    def in_footer(self) -> bool:
        kind = self.type
        known = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        return len(self.path) == 1 and bool(known or pa.types.is_string(kind))

    def include(self, low: Any, high: Any) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class Unbounded(ValueError):
    """A bound that Delta's log cannot hold in a form that every reader understands."""


class Statistics:
    """Statistics of a file that is being written."""

    def __init__(self, columns: pa.Schema, *, leave_out: frozenset[str] = frozenset()) -> None:
        numbers = itertools.count()
        self._leaves = [leaf for leaf in _leaves(columns, (), (), numbers) if leaf.names[0] not in leave_out]
        self._unbounded: set[tuple[str, ...]] = set()
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add a batch, which has its own row groups."""
        if rows.num_rows == 0:
            return
        self.rows += rows.num_rows
        for leaf in self._leaves:
            column = _reached(rows, leaf.path)
            leaf.nulls += column.null_count
            if leaf.bounded and leaf.names not in self._unbounded and column.null_count < rows.num_rows:
                self._widen(leaf, column)

    def _widen(self, leaf: _Leaf, column: pa.Array) -> None:
        if pa.types.is_floating(leaf.type) and _has_nan(column):
            # Some engines sort NaN above every number, others ignore it: no bound fits both.
            self._unbounded.add(leaf.names)
            return
        if leaf.in_footer and not (pa.types.is_string(leaf.type) and _longest(column) > _IN_FOOTER):
            return
        found = pc.min_max(_plain(column))
        leaf.include(found["min"].as_py(), found["max"].as_py())

    def _read(self, footer: pq.FileMetaData) -> None:
        for leaf in self._leaves:
            if not leaf.in_footer or leaf.names in self._unbounded:
                continue
            for group in range(footer.num_row_groups):
                found = footer.row_group(group).column(leaf.column).statistics
                if found is not None and found.has_min_max:
                    leaf.include(found.min, found.max)
            if leaf.low is None and leaf.nulls < self.rows:
                self._unbounded.add(leaf.names)

    def json(self, footer: pq.FileMetaData) -> str:
        """Return an add action's statistics: of all columns, or only the number of rows."""
        low, high, nulls, missing = self.parts(footer)
        if missing:
            return f'{{"numRecords":{self.rows}}}'
        return written(self.rows, low, high, nulls)

    def parts(self, footer: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
        """Return minima, maxima and null counts as JSON texts by column, and the columns with missing bounds.

        Columns with only nulls need no bounds.
        """
        self._read(footer)
        low: dict[str, Any] = {}
        high: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        missing: list[str] = []
        for leaf in self._leaves:
            _put(nulls, leaf.names, str(leaf.nulls))
            if leaf.names in self._unbounded:
                missing.append(leaf.names[0])
            elif leaf.low is not None:
                try:
                    smallest, largest = _floor(leaf.low, leaf.type), _ceiling(leaf.high, leaf.type)
                except Unbounded:
                    missing.append(leaf.names[0])
                else:
                    _put(low, leaf.names, smallest)
                    _put(high, leaf.names, largest)
        return low, high, nulls, missing


def can_skip(column: pa.Field) -> bool:
    """Return whether Delta can skip files by this column: it is neither nested nor boolean."""
    named = column.name.isidentifier() and column.name.isascii()
    kind = column.type
    other = pa.types.is_nested(kind) or _is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return named and not other


def written(rows: int, low: dict[str, Any], high: dict[str, Any], nulls: dict[str, Any]) -> str:
    """Return Delta's JSON of these parts; numbers keep their digits."""
    return f'{{"numRecords":{rows},"minValues":{_text(low)},"maxValues":{_text(high)},"nullCount":{_text(nulls)}}}'


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "{" + ",".join(f"{_quoted(name)}:{_text(one)}" for name, one in value.items()) + "}"


def _quoted(text: str) -> str:
    # delta-rs decodes some escaped characters, such as U+20000, wrongly.
    return json.dumps(text, ensure_ascii=False)


def _put(into: dict[str, Any], names: tuple[str, ...], text: str) -> None:
    for name in names[:-1]:
        into = into.setdefault(name, {})
    into[names[-1]] = text


def _leaves(fields: Any, path: tuple[int, ...], names: tuple[str, ...], numbers: Iterator[int]) -> Iterator[_Leaf]:
    for place, field in enumerate(fields):
        here, called = (*path, place), (*names, field.name)
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, here, called, numbers)
        elif pa.types.is_nested(field.type):
            # Lists and maps have no bounds, but are columns of the Parquet file.
            within = [field.type.field(one) for one in range(field.type.num_fields)]
            deque(_leaves(within, here, called, numbers), maxlen=0)
        else:
            yield _Leaf(here, called, field.type, next(numbers))


def _has_nan(column: pa.Array) -> bool:
    total = pc.sum(column).as_py()
    # Infinities of both signs also give NaN.
    return math.isnan(total) and bool(pc.any(pc.is_nan(column)).as_py())


def _longest(column: pa.Array) -> int:
    return int(pc.max(pc.binary_length(column)).as_py())


def _reached(rows: pa.RecordBatch, path: tuple[int, ...]) -> pa.Array:
    column = rows.column(path[0])
    return column if len(path) == 1 else pc.struct_field(column, list(path[1:]))


def _plain(column: pa.Array) -> pa.Array:
    """Return dates and times as numbers: Python's range is smaller than Arrow's."""
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _floor(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, str):
        return _quoted(value[:_PREFIX])
    return instant(value, kind, up=False) if pa.types.is_timestamp(kind) else _exact(value, kind)


def _ceiling(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, str):
        return _quoted(_cut_up(value))
    return instant(value, kind, up=True) if pa.types.is_timestamp(kind) else _exact(value, kind)


def _cut_up(text: str) -> str:
    for length in range(_PREFIX, 2 * _PREFIX):
        if length >= len(text):
            return text
        if text[length] < _LARGEST_ASCII:
            return text[:length] + _LARGEST_ASCII
        if text[length] < _LARGEST:
            return text[:length] + _LARGEST
    return text


def _exact(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if pa.types.is_date32(kind):
        if not _DAYS[0] <= value <= _DAYS[1]:
            raise Unbounded
        return json.dumps((date(1970, 1, 1) + timedelta(days=value)).isoformat())
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise Unbounded
    return json.dumps(value)


def instant(microseconds: int, kind: pa.DataType, *, up: bool) -> str:
    """Return JSON of a time in milliseconds. Raise Unbounded outside of the years 1 to 9999."""
    rounded = -(-microseconds // 1000) * 1000 if up else microseconds // 1000 * 1000
    if not INSTANTS[0] <= rounded <= INSTANTS[1]:
        raise Unbounded
    moment = (_EPOCH + timedelta(microseconds=rounded)).replace(tzinfo=None)
    return json.dumps(f"{moment.isoformat(timespec='milliseconds')}{'' if kind.tz is None else 'Z'}")


FILE_BYTES: Final = 128 << 20
"""Bytes at which a file is closed."""
_GROUP_BYTES: Final = 4 << 20
_GROUP_ROWS: Final = (1024, 32_768)
_DICTIONARY: Final = ["key", "topic", "partition", "timestampType", "topicId"]
_STATISTICS: Final = ["topic", "partition", "offset", "timestamp", "timestampType", "topicId"]


def writer(sink: Any, columns: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of the archive's and optional columns."""
    decoded = _flat(columns, columns.names[len(_ARCHIVE) :])
    return pq.ParquetWriter(
        sink,
        with_field_ids(columns),
        compression="zstd",
        compression_level=1,
        use_dictionary=[*_DICTIONARY, *decoded],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        write_statistics=[*_STATISTICS, *decoded],
        write_page_index=True,
    )


class OpenFile:
    """A Parquet file in progress, with its statistics."""

    def __init__(
        self,
        place: Place,
        path: str,
        statistics: Statistics,
        open_writer: Callable[[Any], pq.ParquetWriter],
    ) -> None:
        """Create a file whose relative `path` is unique to this attempt."""
        self.path = path
        self.statistics = statistics
        self._place = place
        self._sink = place.create(path)
        self._writer = open_writer(self._sink)

    @property
    def size(self) -> int:
        """Return the bytes so far, without the writer's buffer."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch, group_rows: int) -> None:
        """Append rows, in row groups of at most `group_rows`."""
        self._writer.write_batch(rows, row_group_size=group_rows)
        self.statistics.add(rows)

    def close(self) -> tuple[int, pq.FileMetaData]:
        """Finish the file durably. Return its size in bytes and its footer."""
        self._writer.close()
        return self._place.finish(self._sink), self._writer.writer.metadata

    def abandon(self) -> None:
        """Delete the file in any state."""
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            self._writer.close()
        self._place.abandon(self._sink, self.path)


_ARCHIVE: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "topicId")


def with_field_ids(columns: pa.Schema) -> pa.Schema:
    """Return a table's columns with field IDs."""
    numbers = itertools.count(1)
    own = min(len(_ARCHIVE), len(columns))
    found = list(_numbered(list(columns)[:own], numbers))
    for column in list(columns)[own:]:
        found += _numbered([column], numbers)
    return pa.schema(found, metadata=columns.metadata)


def _numbered(fields: list[pa.Field], numbers: Iterator[int]) -> Iterator[pa.Field]:
    ids = [next(numbers) for _ in fields]
    for number, field in zip(ids, fields, strict=True):
        kind = _numbered_type(field.type, numbers)
        yield pa.field(field.name, kind, field.nullable, {**(field.metadata or {}), _FIELD_ID: str(number).encode()})


def _numbered_type(kind: pa.DataType, numbers: Iterator[int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(list(_numbered(list(kind), numbers)))
    if pa.types.is_list(kind):
        return pa.list_(*_numbered([kind.value_field], numbers))
    if pa.types.is_map(kind):
        return pa.map_(*_numbered([kind.key_field, kind.item_field], numbers), kind.keys_sorted)
    return kind


def field_ids(fields: Any, within: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield names and field IDs of columns and nested fields that have IDs."""
    for field in fields:
        names = (*within, field.name)
        number = (field.metadata or {}).get(_FIELD_ID)
        if number is not None:
            yield names, int(number)
        if pa.types.is_struct(field.type):
            yield from field_ids(field.type, names)
        elif pa.types.is_list(field.type):
            yield from field_ids([field.type.value_field.with_name("element")], names)
        elif pa.types.is_map(field.type):
            parts = [field.type.key_field.with_name("key"), field.type.item_field.with_name("value")]
            yield from field_ids(parts, names)


_FIELD_ID: Final = b"PARQUET:field_id"


def _flat(columns: pa.Schema, names: list[str]) -> list[str]:
    return [name for name in names if not pa.types.is_nested(columns.field(name).type)]


def group_rows(batch: pa.RecordBatch) -> int:
    """Return the rows of about 4 MiB, estimated from a sample."""
    low, high = _GROUP_ROWS
    fitting = _GROUP_BYTES * batch.num_rows // max(1, batch.nbytes)
    return int(max(low, min(high, fitting)))
