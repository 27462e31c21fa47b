"""Parse an Avro schema into a tree of types, with their kinds of columns.

Source: Apache Avro 1.12, Specification: "Names", "Logical Types".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.lakehouse.decoders.kinds import (
    BOOL,
    BYTES,
    DATE,
    DEEPEST,
    FLOAT,
    INSTANT,
    INT,
    JSON,
    TEXT,
    Kind,
    array,
    decimal,
    mapping,
    struct,
)
from headrace.lakehouse.write.columns import MOST_COLUMNS

PRIMITIVES: Final = {
    "null": JSON,
    "boolean": BOOL,
    # A schema may widen numbers later.
    "int": INT,
    "long": INT,
    "float": FLOAT,
    "double": FLOAT,
    "bytes": BYTES,
    "string": TEXT,
}
_MOST_FIXED: Final = 1 << 20


class SchemaError(ValueError):
    """Invalid schema; the message names the field."""


@dataclass(eq=False)
class Type:
    """A type, which may contain itself by reference."""

    name: str
    """`null`, `boolean`, `int`, `long`, `float`, `double`, `bytes`, `string`, `fixed`, `enum`, `array`, `map`, `union`
    or `record`."""
    full: str = ""
    """Full name of a named type."""
    fields: "list[tuple[str, Type]]" = field(default_factory=list)
    inner: "list[Type]" = field(default_factory=list)
    """The items of an array, the values of a map, or the branches of a union."""
    symbols: list[str] = field(default_factory=list)
    size: int = 0
    logical: str = ""
    """`date`, `timestamp-millis`, `timestamp-micros` or `decimal`, where it fits."""
    precision: int = 0
    scale: int = 0


def parse(text: str, others: Mapping[str, str] | None = None) -> Type:
    """Parse a schema in JSON. `others` are its references in order of dependency. Raise SchemaError."""
    names: dict[str, Type] = {}
    try:
        for name, other in (others or {}).items():
            _parse(json.loads(other), "", names, name)
        return _parse(json.loads(text), "", names, "")
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except SchemaError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SchemaError(f"{type(error).__name__}: {error}") from None


def _parse(schema: Any, space: str, names: dict[str, Type], path: str) -> Type:  # noqa: PLR0911  # one for each kind
    at = f"field {path}" if path else "the schema"
    if isinstance(schema, list):
        found = [_parse(one, space, names, path) for one in schema]
        if not found or any(one.name == "union" for one in found):
            raise SchemaError(f"{at}: a union of unions, or of nothing")
        if len({one.full or one.name for one in found}) < len(found):
            raise SchemaError(f"{at}: a union that has a type twice")
        return Type("union", inner=found)
    if isinstance(schema, str):
        return _named(schema, space, names, at)
    if not isinstance(schema, dict) or "type" not in schema:
        raise SchemaError(f"{at}: {json.dumps(schema)[:60]} is no type")
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _parse(kind, space, names, path)
    if kind == "array":
        return Type("array", inner=[_parse(_part(schema, "items", at), space, names, path)])
    if kind == "map":
        return Type("map", inner=[_parse(_part(schema, "values", at), space, names, path)])
    if kind in {"record", "error", "enum", "fixed"}:
        return _definition(schema, kind, space, names, path, at)
    made = _named(kind, space, names, at)
    return _logical(Type(made.name), schema) if made.name in PRIMITIVES else made


def _part(schema: dict[str, Any], name: str, at: str) -> Any:
    if name not in schema:
        raise SchemaError(f"{at}: an {schema['type']} without {name}")
    return schema[name]


def _named(name: Any, space: str, names: dict[str, Type], at: str) -> Type:
    if not isinstance(name, str):
        raise SchemaError(f"{at}: {json.dumps(name)[:60]} is no type")
    if name in PRIMITIVES:
        return Type(name)
    for full in (name, f"{space}.{name}") if "." in name or not space else (f"{space}.{name}", name):
        if full in names:
            return names[full]
    raise SchemaError(f"{at}: type {name!r} is not defined here or before")


def _definition(schema: dict[str, Any], kind: str, space: str, names: dict[str, Type], path: str, at: str) -> Type:
    name = _part(schema, "name", at)
    if not isinstance(name, str) or not name:
        raise SchemaError(f"{at}: a {kind} without a name")
    if "." not in name:
        space = schema.get("namespace", space) or ""
        name = f"{space}.{name}" if space else name
    else:
        space = name.rpartition(".")[0]
    if name in names or name in PRIMITIVES:
        raise SchemaError(f"{at}: type {name!r} is defined twice")
    made = names[name] = Type("record" if kind == "error" else kind, full=name)
    if kind == "fixed":
        made.size = _part(schema, "size", at)
        if type(made.size) is not int or not 0 <= made.size <= _MOST_FIXED:
            raise SchemaError(f"{at}: a fixed of {str(made.size)[:20]} bytes")
        return _logical(made, schema)
    if kind == "enum":
        made.symbols = _part(schema, "symbols", at)
        if not isinstance(made.symbols, list) or not all(isinstance(one, str) for one in made.symbols):
            raise SchemaError(f"{at}: an enum whose symbols are no texts")
        return made
    fields = _part(schema, "fields", at)
    for one in fields if isinstance(fields, list) else [None]:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
            raise SchemaError(f"{at}: a field of {name} without a name or a type")
        inner = f"{path}.{one['name']}" if path else one["name"]
        # Some schemas put a logical type next to the field's type.
        made.fields.append((one["name"], _parse(one["type"], space, names, inner)))
    if len({one for one, _ in made.fields}) < len(made.fields):
        raise SchemaError(f"{at}: {name} has two fields of one name")
    return made


_FITTING: Final = {
    "date": {"int"},
    "timestamp-millis": {"long"},
    "timestamp-micros": {"long"},
    "decimal": {"bytes", "fixed"},
}


def _logical(made: Type, schema: dict[str, Any]) -> Type:
    """Add the logical type if it fits. The specification ignores others."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or made.name not in _FITTING.get(logical, ()):
        return made
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return made
        if made.name == "fixed" and precision > len(str(1 << max(0, 8 * made.size - 1))) - 1:
            return made
        made.precision, made.scale = precision, scale
    made.logical = logical
    return made


def kind_of(whole: Type) -> Kind:
    """Return the struct of a record. Raise SchemaError."""
    if whole.name != "record" or not whole.fields:
        raise SchemaError("it is no record with fields: columns come from a record's fields")
    made = _record(whole, "", ())
    if made.leaves > MOST_COLUMNS:
        raise SchemaError(f"it has {made.leaves:,} columns, a table has at most {MOST_COLUMNS:,}")
    return made


def _record(made: Type, path: str, above: tuple[Type, ...]) -> Kind:
    fields = []
    count = 0
    for name, each in made.fields:
        inner = f"{path}.{name}" if path else name
        fields.append((name, _kind(each, inner, (*above, made))))
        count += fields[-1][1].leaves
        if count > MOST_COLUMNS:
            raise SchemaError(f"field {inner}: a table has at most {MOST_COLUMNS:,} columns")
    try:
        return struct(fields)
    except ValueError as error:
        raise SchemaError(str(error)) from None


def _kind(made: Type, path: str, above: tuple[Type, ...]) -> Kind:  # noqa: PLR0911  # one for each
    if made in above or len(above) >= DEEPEST:
        return JSON
    if made.name == "record":
        return _record(made, path, above) if made.fields else JSON
    if made.name == "array":
        return array(_kind(made.inner[0], path, (*above, made)))
    if made.name == "map":
        return mapping(TEXT, _kind(made.inner[0], path, (*above, made)))
    if made.name == "union":
        return _union(made, path, above)
    if made.logical == "decimal":
        return decimal(made.precision, made.scale)
    if made.logical:
        return DATE if made.logical == "date" else INSTANT
    if made.name in {"fixed", "enum"}:
        return BYTES if made.name == "fixed" else TEXT
    return PRIMITIVES[made.name]


def _union(made: Type, path: str, above: tuple[Type, ...]) -> Kind:
    kinds = [(name, _kind(one, path, (*above, made))) for name, one in branches(made)]
    if len(kinds) < 2:
        return kinds[0][1] if kinds else JSON
    if is_number(made):
        return FLOAT if any(kind == FLOAT for _, kind in kinds) else INT
    try:
        return struct(kinds)
    except ValueError as error:
        raise SchemaError(f"field {path}: {error}") from None


def is_number(union: Type) -> bool:
    """Return whether all types are whole numbers, or fractions with whole numbers that a double represents."""
    plain = [one for one in union.inner if one.name != "null"]
    names = {one.name for one in plain}
    whole = (names <= {"int", "long"}) or names <= {"float", "double"} or names <= {"int", "float", "double"}
    return whole and not any(one.logical for one in plain)


def branches(union: Type) -> list[tuple[str, Type]]:
    """Return a union's types that are not null, with their field names in a struct."""
    plain = [one for one in union.inner if one.name != "null"]
    short = [one.full.rpartition(".")[2] or one.name for one in plain]
    if len(set(short)) < len(short):
        short = [one.full or one.name for one in plain]
    return list(zip(short, plain, strict=True))
