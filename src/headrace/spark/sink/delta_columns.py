"""Which columns of a query a Delta table can hold: names and types, nested ones included, before any data moves."""

from collections.abc import Iterator
from typing import Final

from pyspark.sql import types

from headrace.client.errors import TableError
from headrace.lakehouse.write.names import REFUSED

_HELD: Final = (
    types.BinaryType,
    types.BooleanType,
    types.ByteType,
    types.CharType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FloatType,
    types.IntegerType,
    types.LongType,
    types.ShortType,
    types.StringType,
    types.TimestampType,
    types.TimestampNTZType,
    types.VarcharType,
)
_INSTEAD: Final = (
    (types.VariantType, "cast it to string, or archive the topic with --schema variant"),
    (types.NullType, "cast it to the type that it shall have"),
    (
        (types.DayTimeIntervalType, types.YearMonthIntervalType, types.CalendarIntervalType),
        "write its parts as numbers",
    ),
    (types.TimeType, "cast it to string"),
)


def check(columns: types.StructType) -> None:
    """See that a Delta table can have these columns.

    Raises:
        TableError: a name or a type that Delta does not have, or names that differ by case only.
    """
    for name, kind in _columns(columns, ""):
        if isinstance(kind, types.StructType):
            _check_names(kind, name)
        elif not isinstance(kind, (*_HELD, types.ArrayType, types.MapType)):
            hint = next((hint for known, hint in _INSTEAD if isinstance(kind, known)), "cast it to another type")
            raise TableError(f"column {name!r} is {kind.simpleString()}, a type that Delta tables do not have: {hint}")


def _check_names(struct: types.StructType, within: str) -> None:
    seen: dict[str, str] = {}
    for name in struct.names:
        full = f"{within}.{name}" if within else name
        odd = REFUSED.search(name)
        if odd is not None or not name:
            what = f"the character {odd[0]!r}" if odd is not None else "no character"
            raise TableError(
                f"column {full!r} has {what} in its name, which Delta does not allow: give it another name"
            )
        if name.lower() in seen:
            first = seen[name.lower()]
            raise TableError(f"columns {first!r} and {full!r} have one name for Delta, which ignores case: rename one")
        seen[name.lower()] = full


def _columns(kind: types.DataType, name: str) -> Iterator[tuple[str, types.DataType]]:
    """A type and those within it, with their names as a query writes them."""
    yield name, kind
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _columns(field.dataType, f"{name}.{field.name}" if name else field.name)
    elif isinstance(kind, types.ArrayType):
        yield from _columns(kind.elementType, f"{name}.element")
    elif isinstance(kind, types.MapType):
        yield from _columns(kind.keyType, f"{name}.key")
        yield from _columns(kind.valueType, f"{name}.value")
