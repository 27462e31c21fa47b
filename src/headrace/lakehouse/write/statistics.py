"""Statistics of a data file for Delta's log: minimum, maximum and null count of every primitive column.

A reader that finds statistics of a file expects them for every column that can have them. delta-rs' `to_pyarrow_*`
skips the file on any filter of a column without bounds. A file therefore has all of them, or only its number of rows.

Parquet's writer computes bounds anyway. They are taken from there where Python can read them without loss, since to
find all of them a second time would take a tenth of what writing takes.
"""

import itertools
import json
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_PREFIX: Final = 32
"""Characters of a text's bound, as Delta cuts it."""
_IN_FOOTER: Final = 4000
"""Parquet's writer leaves out bounds of more than 4,096 bytes."""
_LARGEST: Final = "\U0010ffff"
_LARGEST_ASCII: Final = "\x7f"
_DAYS: Final = tuple(bound.toordinal() - date(1970, 1, 1).toordinal() for bound in (date.min, date.max))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
INSTANTS: Final = tuple(
    (bound.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) for bound in (datetime.min, datetime.max)
)
"""The first and the last time that Delta's log can hold, in microseconds after 1970."""


@dataclass
class _Leaf:
    """A column, or a field of structs, and what was seen of it."""

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
        """Whether Delta has a minimum and a maximum of this type."""
        return not (_is_binary(self.type) or pa.types.is_null(self.type))

    @property
    def in_footer(self) -> bool:
        """Whether the file's own statistics have its bounds."""
        kind = self.type
        known = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        return len(self.path) == 1 and bool(known or pa.types.is_string(kind))

    def include(self, low: Any, high: Any) -> None:
        """Move the bounds apart."""
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class Unbounded(ValueError):
    """A minimum or maximum that Delta's log cannot hold in a way that every reader understands."""


class Statistics:
    """What is known of the rows of one file, collected while they are written."""

    def __init__(self, columns: pa.Schema, *, leave_out: frozenset[str] = frozenset()) -> None:
        """Begin with no rows.

        Args:
            columns: those of the file.
            leave_out: names of columns that are not looked at.
        """
        numbers = itertools.count()
        self._leaves = [leaf for leaf in _leaves(columns, (), (), numbers) if leaf.names[0] not in leave_out]
        self._unbounded: set[tuple[str, ...]] = set()
        self.rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the rows of a batch into account; in the file they have row groups of their own."""
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
            # Some engines put NaN above every number, others leave it out of comparisons: no bound serves both.
            self._unbounded.add(leaf.names)
            return
        if leaf.in_footer and not (pa.types.is_string(leaf.type) and _longest(column) > _IN_FOOTER):
            return
        found = pc.min_max(_plain(column))
        leaf.include(found["min"].as_py(), found["max"].as_py())

    def _read(self, footer: pq.FileMetaData) -> None:
        """Take bounds from the file's own statistics."""
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
        """The statistics as an add action has them: of all columns, or the number of rows only."""
        low, high, nulls, missing = self.parts(footer)
        if missing:
            return f'{{"numRecords":{self.rows}}}'
        return written(self.rows, low, high, nulls)

    def parts(self, footer: pq.FileMetaData) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
        """Minima, maxima and null counts as JSON texts by column, and the columns without bounds that should have some.

        Columns that hold nothing but nulls have no bounds and need none.
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
    """Whether Delta can be asked, by name, to skip files by this column: not nested, and not a boolean."""
    named = column.name.isidentifier() and column.name.isascii()
    kind = column.type
    other = pa.types.is_nested(kind) or _is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
    return named and not other


def written(rows: int, low: dict[str, Any], high: dict[str, Any], nulls: dict[str, Any]) -> str:
    """Delta's JSON of parts: numbers are in it digit by digit as they were given."""
    return f'{{"numRecords":{rows},"minValues":{_text(low)},"maxValues":{_text(high)},"nullCount":{_text(nulls)}}}'


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "{" + ",".join(f"{_quoted(name)}:{_text(one)}" for name, one in value.items()) + "}"


def _quoted(text: str) -> str:
    # Not escaped: delta-rs reads some escaped characters beyond U+FFFF, such as U+20000, as others.
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
            # A list's and a map's have no bounds, but they are columns of the Parquet file.
            within = [field.type.field(one) for one in range(field.type.num_fields)]
            deque(_leaves(within, here, called, numbers), maxlen=0)
        else:
            yield _Leaf(here, called, field.type, next(numbers))


def _has_nan(column: pa.Array) -> bool:
    total = pc.sum(column).as_py()
    # Infinities of both signs give NaN, too.
    return math.isnan(total) and bool(pc.any(pc.is_nan(column)).as_py())


def _longest(column: pa.Array) -> int:
    return int(pc.max(pc.binary_length(column)).as_py())


def _reached(rows: pa.RecordBatch, path: tuple[int, ...]) -> pa.Array:
    """A column or a field of structs; null where the struct is."""
    column = rows.column(path[0])
    return column if len(path) == 1 else pc.struct_field(column, list(path[1:]))


def _plain(column: pa.Array) -> pa.Array:
    """Dates and times as numbers: Python has fewer of them than Arrow."""
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _floor(value: Any, kind: pa.DataType) -> str:
    """JSON of something that is not above `value`. Raises Unbounded."""
    if isinstance(value, str):
        return _quoted(value[:_PREFIX])
    return instant(value, kind, up=False) if pa.types.is_timestamp(kind) else _exact(value, kind)


def _ceiling(value: Any, kind: pa.DataType) -> str:
    """JSON of something that is not below `value`. Raises Unbounded."""
    if isinstance(value, str):
        return _quoted(_cut_up(value))
    return instant(value, kind, up=True) if pa.types.is_timestamp(kind) else _exact(value, kind)


def _cut_up(text: str) -> str:
    """A short text that is not less than `text`, as UTF-8 compares."""
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
    """JSON of a time, which has milliseconds in the log. Raises Unbounded for one outside of the years 1 to 9999."""
    rounded = -(-microseconds // 1000) * 1000 if up else microseconds // 1000 * 1000
    if not INSTANTS[0] <= rounded <= INSTANTS[1]:
        raise Unbounded
    moment = (_EPOCH + timedelta(microseconds=rounded)).replace(tzinfo=None)
    return json.dumps(f"{moment.isoformat(timespec='milliseconds')}{'' if kind.tz is None else 'Z'}")
