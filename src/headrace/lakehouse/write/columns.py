"""Columns that come from values: their names, how they grow, and the rows of one batch in them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.write.table import COLUMNS, VARIANT

ODD: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta allows in no column's name."""
_OWN: Final = frozenset(name.lower() for name in COLUMNS.names)
PREFIX: Final = "value_"


@dataclass
class Decoded:
    """A batch's values as columns."""

    columns: pa.StructArray
    """As many rows as there were values; null where one could not be decoded, or was null."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Row -> why it could not be decoded."""


def column_name(name: str) -> str:
    """The column of a field: its name, with `value_` before it where the archive has a column of that name itself."""
    plain = ODD.sub("_", name)
    return PREFIX + plain if plain.lower() in _OWN else plain


def field_name(column: str) -> str:
    """The inverse of `column_name` for fields without odd characters."""
    own = column.removeprefix(PREFIX)
    return own if column.startswith(PREFIX) and own.lower() in _OWN else column


def grown(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """`known` with the columns that only `found` has; those that both have stay as they are."""
    names = {name.lower() for name in known.names}
    return pa.schema([*known, *(one for one in found if one.name.lower() not in names)])


def conflict(known: pa.Schema, found: pa.Schema) -> str | None:
    """Why rows with the columns `found` do not fit a table with `known`; None when they do."""
    kinds = {one.name.lower(): one for one in known}
    for one in found:
        there = kinds.get(one.name.lower())
        if there is not None and there.type != one.type:
            return f"column {there.name!r} of the table is {there.type}, the value's is {one.type}"
    return None


def rows(values: Sequence[dict[str, Any] | None], columns: pa.Schema, reasons: dict[int, str]) -> Decoded:
    """Values that were decoded one by one, in columns; those that a column cannot hold join the others in `reasons`."""
    kind = pa.struct(list(columns))
    try:
        return Decoded(pa.array(values, kind), reasons)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        parts = []
        for row, value in enumerate(values):
            try:
                parts.append(pa.array([value], kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                reasons[row] = first_line(error)
                parts.append(pa.nulls(1, kind))
        return Decoded(pa.concat_arrays(parts), reasons)


def widened(found: pa.StructArray, columns: pa.Schema) -> pa.StructArray:
    """The same rows with more columns, or in another order."""
    names = {one.name.lower(): place for place, one in enumerate(found.type)}
    places = [names.get(one.name.lower()) for one in columns]
    arrays = [
        fitted(None if place is None else found.field(place), len(found), one.type)
        for place, one in zip(places, columns, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(columns)) if arrays else pa.nulls(len(found), pa.struct([]))


def fitted(column: pa.Array | None, rows: int, kind: pa.DataType) -> pa.Array:
    """A column as a table has it; nulls where there is None."""
    if column is None:
        column = pa.nulls(rows, kind)
    elif column.type != kind:
        column = column.cast(kind)
    if kind != VARIANT or not column.null_count:
        return column
    # Parquet is written only when what cannot be null is not null even where the whole is.
    parts = [pc.fill_null(column.field(place), b"") for place in range(kind.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())


def first_line(error: Exception) -> str:
    """An error as a reason."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:500]
