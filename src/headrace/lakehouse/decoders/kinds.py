"""Define the kinds of columns in a typed table and the values that each accepts.

pyarrow's own conversions accept too much. Delta, Parquet and their readers support all of the types.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from headrace.lakehouse.write.columns import assigned
from headrace.lakehouse.write.table import VARIANT

DEEPEST: Final = 20
"""Maximum nesting of structs, lists and maps. Readers of Delta's log allow 128 levels of JSON; a struct takes three."""
TIME: Final = pa.timestamp("us", tz="UTC")
MOST_DIGITS: Final = 38
"""Maximum digits of Delta's decimals."""


@dataclass(frozen=True)
class Kind:
    """A column's type and accepted values."""

    name: str
    """`bool`, `int`, `float`, `decimal`, `text`, `bytes`, `instant`, `time`, `date`, `moment`, `day`, `json`, `list`,
    `map` or `struct`."""
    type: pa.DataType
    fields: "tuple[Field, ...]" = ()
    """Fields of a struct."""
    inner: "tuple[Kind, ...]" = ()
    """A list's item, or a map's key and value."""
    scale: int = 0
    """Digits after the decimal point, also of decimals stored as text."""
    closed: bool = False
    """Whether a struct rejects values with other fields."""
    leaves: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Field:
    """A field of a struct."""

    source: str
    """The field's name in the values."""
    column: str
    kind: Kind


BOOL: Final = Kind("bool", pa.bool_())
INT: Final = Kind("int", pa.int64())
FLOAT: Final = Kind("float", pa.float64())
TEXT: Final = Kind("text", pa.string())
BYTES: Final = Kind("bytes", pa.binary())
INSTANT: Final = Kind("instant", TIME)
"""Microseconds since 1970."""
TIME_TEXT: Final = Kind("time", TIME)
"""An RFC 3339 time in text."""
DATE: Final = Kind("date", pa.date32())
"""Days since 1970."""
MOMENT: Final = Kind("moment", TIME)
"""A time from another column. Numbers are not accepted because their unit is unknown."""
DAY: Final = Kind("day", pa.date32())
"""A date from another column. Numbers and times are not accepted."""
JSON: Final = Kind("json", pa.string())
"""A value without a type of its own, as JSON text."""
UINT64: Final = Kind("decimal", pa.decimal128(20, 0))
WIDE: Final = Kind("decimal", pa.decimal128(MOST_DIGITS, 0))
"""Whole numbers beyond 64 bits."""


def decimal(precision: int, scale: int) -> Kind:
    """Return a decimal, or text if Delta has none with that many digits."""
    if precision > MOST_DIGITS:
        return Kind("decimal", pa.string(), scale=scale)
    return Kind("decimal", pa.decimal128(precision, scale), scale=scale)


def array(item: Kind) -> Kind:
    """Return a list."""
    return Kind("list", pa.list_(item.type), inner=(item,), leaves=item.leaves)


def mapping(key: Kind, value: Kind) -> Kind:
    """Return a map."""
    return Kind("map", pa.map_(key.type, value.type), inner=(key, value), leaves=1 + value.leaves)


def struct(fields: Iterable[tuple[str, Kind]], *, columns: Iterable[str] = (), closed: bool = False) -> Kind:
    """Return a struct. Only a whole value may have no fields. Raise ValueError for invalid names."""
    given = dict(fields)
    names = assigned(given, list(columns), own=False)
    return of_fields([Field(name, names[name], kind) for name, kind in given.items()], closed=closed)


def of_fields(fields: Iterable[Field], *, closed: bool = False) -> Kind:
    """Return a struct whose columns have the fields' names."""
    made = tuple(fields)
    kind = pa.struct([pa.field(one.column, one.kind.type) for one in made])
    return Kind("struct", kind, made, closed=closed, leaves=sum(one.kind.leaves for one in made))


_OF_TEXT: Final = {one.type: one for one in (BOOL, INT, FLOAT, TEXT, TIME_TEXT)}
_OF_COLUMN: Final = {one.type: one for one in (BOOL, INT, FLOAT, TEXT, BYTES, MOMENT, DAY)}


def of_type(kind: pa.DataType, *, text: bool) -> Kind | None:
    """Return a column's kind, or None for a type that no value becomes.

    With `text`, values are JSON with times as text. Otherwise they come from another column.
    """
    scalars = _OF_TEXT if text else _OF_COLUMN
    if kind in scalars:
        return scalars[kind]
    if pa.types.is_decimal128(kind):
        return Kind("decimal", kind)
    if pa.types.is_map(kind):
        key, value = of_type(kind.key_type, text=text), of_type(kind.item_type, text=text)
        return None if key is None or value is None else Kind("map", kind, inner=(key, value))
    if pa.types.is_list(kind):
        item = of_type(kind.value_type, text=text)
        return None if item is None else Kind("list", kind, inner=(item,), leaves=item.leaves)
    if pa.types.is_struct(kind) and kind != VARIANT:
        found = [(one.name, of_type(one.type, text=text)) for one in kind]
        inner = [Field(name, name, each) for name, each in found if each is not None]
        if len(inner) == len(found):
            leaves = sum(each.kind.leaves for each in inner)
            return Kind("struct", kind, tuple(inner), closed=True, leaves=leaves)
    return None
