"""Name the columns of typed tables, one for each field, and fit a batch's rows to them."""

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.write.table import COLUMNS, VARIANT

MOST_COLUMNS: Final = 1_000
"""Maximum value columns of a table, fields of structs included: each is in every file and checkpoint."""


@dataclass
class Decoded:
    """A batch's values as columns."""

    columns: pa.StructArray
    """One row per value. Rows that failed have undefined content."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Row -> why it could not be decoded."""


def grown(known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """Return `known` with the additional columns of `found`."""
    names = {folded(name) for name in known.names}
    return pa.schema([*known, *(one for one in found if folded(one.name) not in names)])


def widened(found: pa.StructArray, columns: pa.Schema) -> pa.StructArray:
    """Return the rows with more columns, or in another order."""
    places = {one.name: place for place, one in enumerate(found.type)}
    arrays = [
        fitted(found.field(places[one.name]) if one.name in places else None, len(found), one.type) for one in columns
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(columns)) if arrays else nothing(len(found))


def leaves(columns: pa.Schema) -> int:
    """Count columns, with the fields of structs instead of the structs."""
    return sum(_leaves(one.type) for one in columns)


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_leaves(one.type) for one in kind)
    if pa.types.is_map(kind):
        return 1 + _leaves(kind.item_type)
    return _leaves(kind.value_type) if pa.types.is_list(kind) else 1


def nothing(rows: int) -> pa.StructArray:
    """Return rows without columns."""
    return pa.array([{}] * rows, pa.struct([]))


def fitted(column: pa.Array | None, rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column as the table has it; nulls for None."""
    if column is None:
        column = pa.nulls(rows, kind)
    elif column.type != kind:
        column = column.cast(kind)
    if kind != VARIANT or not column.null_count:
        return column
    # Parquet requires values in non-nullable fields even if the struct is null.
    parts = [pc.fill_null(column.field(place), b"") for place in range(kind.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())


def first_line(error: Exception) -> str:
    """Return an error's first line."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:500]


_OWN: Final = frozenset(name.casefold() for name in COLUMNS.names)
PREFIX: Final = "value_"
LONGEST: Final = 200
"""Maximum characters of a column's name: it is in every file and commit."""
REFUSED: Final = re.compile("[ ,;{}()\n\t=]")
"""Characters that Delta does not allow in a column's name."""
# Also characters that a terminal cannot show and UTF-8 cannot encode.
_ODD: Final = re.compile(f"{REFUSED.pattern[:-1]}\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# A name's own underscore is escaped, so two fields never share a column.
_ESCAPE: Final = re.compile("_(?=x(?:[0-9a-f]{4,6})?_)")
_DIGITS: Final = 8


def folded(name: str) -> str:
    """Return the form that is equal for names that differ only in case."""
    return name.casefold()


def _code(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04x}_"


def _digest(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()[:_DIGITS]


def plain_name(field: str, *, own: bool = True) -> str:
    """Return the column's name by rules 1 and 2. Raise ValueError if it is too long.

    `own`: the archive's own columns are at the same level, so not inside a struct.
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
        name = f"{before}_x005f_{digits}"  # rule 3 could give it to another field
    _check(name)
    return name


class Names:
    """Maps fields to columns."""

    def __init__(self, columns: Iterable[str], *, own: bool = True) -> None:
        """Prepare. `own` as for `plain_name`."""
        self._own = own
        self._columns: set[str] = set()
        self._folded: set[str] = set()
        for name in columns:
            self.add(name)

    def add(self, column: str) -> None:
        """Add a column."""
        self._columns.add(column)
        self._folded.add(folded(column))

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def column(self, field: str) -> str:
        """Return the column of a field, which may not exist yet. Raise ValueError if it cannot get a name."""
        name = plain_name(field, own=self._own)
        if name not in self._columns and folded(name) in self._folded:
            name = f"{name}_{_digest(name)}"
            if name not in self._columns and folded(name) in self._folded:
                raise ValueError(f"field {field!r}: two other fields have its column {name!r}")
        return name


def assigned(fields: Collection[str], columns: Iterable[str], *, own: bool = True) -> dict[str, str]:
    """Return the columns of fields at one level, existing ones first. Raise as `Names.column`."""
    names = Names(columns, own=own)
    found = {}
    for name in fields:
        found[name] = names.column(name)
        names.add(found[name])
    return found


def _check(name: str) -> None:
    if len(name) > LONGEST:
        raise ValueError(f"field {name[:40]!r}... has a name of {len(name)} characters, a column has at most {LONGEST}")
