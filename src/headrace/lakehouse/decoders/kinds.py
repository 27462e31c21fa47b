"""What a column of a typed table holds, and the values that it takes.

A kind is an Arrow type and how a decoder's values become it: pyarrow's own conversions accept too much. The types are
a closed set, all of which Delta, Parquet and their readers have.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from headrace.lakehouse.write.columns import assigned
from headrace.lakehouse.write.table import VARIANT

DEEPEST: Final = 20
"""Structs, lists and maps in one another: readers of Delta's log allow 128 levels of JSON, a struct takes three."""
TIME: Final = pa.timestamp("us", tz="UTC")
MOST_DIGITS: Final = 38
"""Digits of Delta's decimals."""


@dataclass(frozen=True)
class Kind:
    """A column's type, with what it is made of."""

    name: str
    """`bool`, `int`, `float`, `decimal`, `text`, `bytes`, `instant`, `time`, `date`, `moment`, `day`, `json`, `list`,
    `map` or `struct`."""
    type: pa.DataType
    fields: "tuple[Field, ...]" = ()
    """Of a struct."""
    inner: "tuple[Kind, ...]" = ()
    """Of a list: the item's; of a map: the key's and the value's."""
    scale: int = 0
    """Of decimals, also those that are text: the digits after the point of the whole numbers that decoders give."""
    closed: bool = False
    """A struct that has no place for other fields: a value that has some is not decoded."""
    leaves: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Field:
    """A field of a struct."""

    source: str
    """Its name in the values."""
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
"""A time of RFC 3339 in text."""
DATE: Final = Kind("date", pa.date32())
"""Days since 1970."""
MOMENT: Final = Kind("moment", TIME)
"""A time that another column has. A number is none: its unit is not known."""
DAY: Final = Kind("day", pa.date32())
"""A date that another column has. A number is none, nor is a time."""
JSON: Final = Kind("json", pa.string())
"""What has no type of its own, as JSON in text."""
UINT64: Final = Kind("decimal", pa.decimal128(20, 0))
WIDE: Final = Kind("decimal", pa.decimal128(MOST_DIGITS, 0))
"""Whole numbers beyond 64 bits."""


def decimal(precision: int, scale: int) -> Kind:
    """Decimals; text where Delta has none with so many digits."""
    if precision > MOST_DIGITS:
        return Kind("decimal", pa.string(), scale=scale)
    return Kind("decimal", pa.decimal128(precision, scale), scale=scale)


def array(item: Kind) -> Kind:
    """A list."""
    return Kind("list", pa.list_(item.type), inner=(item,), leaves=item.leaves)


def mapping(key: Kind, value: Kind) -> Kind:
    """A map."""
    return Kind("map", pa.map_(key.type, value.type), inner=(key, value), leaves=1 + value.leaves)


def struct(fields: Iterable[tuple[str, Kind]], *, columns: Iterable[str] = (), closed: bool = False) -> Kind:
    """A struct of these fields, which may be none only where it is a whole value. Raises ValueError for their names."""
    given = dict(fields)
    names = assigned(given, list(columns), own=False)
    return of_fields([Field(name, names[name], kind) for name, kind in given.items()], closed=closed)


def of_fields(fields: Iterable[Field], *, closed: bool = False) -> Kind:
    """A struct of fields whose columns have their names."""
    made = tuple(fields)
    kind = pa.struct([pa.field(one.column, one.kind.type) for one in made])
    return Kind("struct", kind, made, closed=closed, leaves=sum(one.kind.leaves for one in made))


_OF_TEXT: Final = {one.type: one for one in (BOOL, INT, FLOAT, TEXT, TIME_TEXT)}
_OF_COLUMN: Final = {one.type: one for one in (BOOL, INT, FLOAT, TEXT, BYTES, MOMENT, DAY)}


def of_type(kind: pa.DataType, *, text: bool) -> Kind | None:
    """The kind of a column that a table has; None for types that no value becomes.

    Args:
        kind: the column's type.
        text: whether values are JSON, whose times are text; otherwise they come from another column.
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
