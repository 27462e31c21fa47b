"""Columns of typed tables: their names, how a table's grow, and a batch's rows in them.

There is one column for each field, whatever the field is called.
"""

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.write.table import COLUMNS, VARIANT

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


_OWN: Final = frozenset(name.casefold() for name in COLUMNS.names)
PREFIX: Final = "value_"
LONGEST: Final = 200
"""Characters of a column's name: it is in every file and every commit."""
REFUSED: Final = re.compile("[ ,;{}()\n\t=]")
"""What Delta allows in no column's name."""
# The same, what no terminal shows, and what UTF-8 cannot write.
_ODD: Final = re.compile(f"{REFUSED.pattern[:-1]}\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# A name that has an escape in it already: its underscore is escaped, so that two fields never share a column.
_ESCAPE: Final = re.compile("_(?=x(?:[0-9a-f]{4,6})?_)")
_DIGITS: Final = 8


def folded(name: str) -> str:
    """The form in which names that differ in case only are the same."""
    return name.casefold()


def _code(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04x}_"


def _digest(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()[:_DIGITS]


def plain_name(field: str, *, own: bool = True) -> str:
    """The column's name by rules 1 and 2.

    Args:
        field: the field's name.
        own: whether the archive's own columns are next to it, which they are not inside a struct.

    Raises:
        ValueError: it is too long.
    """
    _check(field)
    name = _ODD.sub(_code, _ESCAPE.sub(_code, field)) or "_x_"
    rest = name
    while own and rest.casefold().startswith(PREFIX):
        rest = rest[len(PREFIX) :]
    if own and rest.casefold() in _OWN:
        name = PREFIX + name
    before, _, digits = name.rpartition("_")
    if len(digits) == _DIGITS and digits == _digest(before):
        name = f"{before}_x005f_{digits}"  # it would be another field's by rule 3
    _check(name)
    return name


class Names:
    """The columns of a table, or of a struct, by which fields find theirs."""

    def __init__(self, columns: Iterable[str], *, own: bool = True) -> None:
        """`own`: whether the archive's own columns are next to them."""
        self._own = own
        self._columns: set[str] = set()
        self._folded: set[str] = set()
        for name in columns:
            self.add(name)

    def add(self, column: str) -> None:
        """There is a column more."""
        self._columns.add(column)
        self._folded.add(folded(column))

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def column(self, field: str) -> str:
        """The column of a field, whether there is one or not.

        Raises:
            ValueError: no name can be given to it.
        """
        name = plain_name(field, own=self._own)
        if name not in self._columns and folded(name) in self._folded:
            name = f"{name}_{_digest(name)}"
            if name not in self._columns and folded(name) in self._folded:
                raise ValueError(f"field {field!r}: two other fields have its column {name!r}")
        return name


def assigned(fields: Collection[str], columns: Iterable[str], *, own: bool = True) -> dict[str, str]:
    """Columns of fields that stand next to each other: those of `columns` first, then new ones in their order.

    Raises:
        ValueError: no name can be given to one of them.
    """
    names = Names(columns, own=own)
    found = {}
    for name in fields:
        found[name] = names.column(name)
        names.add(found[name])
    return found


def _check(name: str) -> None:
    if len(name) > LONGEST:
        raise ValueError(f"field {name[:40]!r}... has a name of {len(name)} characters, a column has at most {LONGEST}")
