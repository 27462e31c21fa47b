"""Columns that come from values: how a table's grow, and a batch's rows in them."""

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.write.names import folded
from headrace.lakehouse.write.table import VARIANT

MOST_COLUMNS: Final = 1_000
"""Columns of values in a table, those inside structs counted: each is in every file, and in every checkpoint."""


@dataclass
class Decoded:
    """A batch's values as columns."""

    columns: pa.StructArray
    """As many rows as there were values; what is in those that could not be decoded means nothing."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Row -> why it could not be decoded."""


def grown(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """`known` with the columns that only `found` has; those that both have stay as they are."""
    names = {folded(name) for name in known.names}
    return pa.schema([*known, *(one for one in found if folded(one.name) not in names)])


def widened(found: pa.StructArray, columns: pa.Schema) -> pa.StructArray:
    """The same rows with more columns, or in another order."""
    places = {one.name: place for place, one in enumerate(found.type)}
    arrays = [
        fitted(found.field(places[one.name]) if one.name in places else None, len(found), one.type) for one in columns
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(columns)) if arrays else nothing(len(found))


def leaves(columns: pa.Schema) -> int:
    """Columns, with those inside structs counted instead of the structs."""
    return sum(_leaves(one.type) for one in columns)


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_leaves(one.type) for one in kind)
    if pa.types.is_map(kind):
        return 1 + _leaves(kind.item_type)
    return _leaves(kind.value_type) if pa.types.is_list(kind) else 1


def nothing(rows: int) -> pa.StructArray:
    """Rows without columns."""
    return pa.array([{}] * rows, pa.struct([]))


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
