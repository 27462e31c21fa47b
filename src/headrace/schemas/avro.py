"""Avro schemas: parsed within bounds, with names and default values checked.

Source: Apache Avro 1.12, Specification: "Schema Declaration", "Names", "Schema Resolution".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.schemas import json_text
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Referenced

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGES: Final = {"int": 1 << 31, "long": 1 << 63}
_MISSING: Final = object()


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record."""

    name: str
    type: "Type"
    aliases: tuple[str, ...]
    has_default: bool


@dataclass(eq=False, slots=True)
class Type:
    """An Avro type. A recursive type contains itself by reference."""

    kind: str
    """A primitive type, `array`, `map`, `union`, `record`, `enum` or `fixed`."""
    name: str = ""
    """Full name of a named type."""
    aliases: frozenset[str] = frozenset()
    """Full names."""
    fields: list[Field] = field(default_factory=list)
    inner: "list[Type]" = field(default_factory=list)
    """Items of an array, values of a map, or branches of a union."""
    symbols: tuple[str, ...] = ()
    has_default: bool = False
    """Of an enum: whether readers know what to use for unknown symbols."""
    size: int = 0

    @property
    def short(self) -> str:
        """Return the name without its namespace."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return self.name or self.kind


def parse(document: Any, referenced: Sequence[Referenced], steps: Steps) -> Type:
    """Return the type of a schema.

    Args:
        document: the schema as parsed JSON.
        referenced: schemas whose names it uses, in order of dependency.
        steps: the budget.

    Raises:
        InvalidSchema: The schema is invalid; the message names the place.
    """
    parser = _Parser(steps)
    for one in referenced:
        parser.read(json_text.parse(one.schema.text, steps), "", f"reference {one.name}: ")
    return parser.read(document, "", "")


class _Parser:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._names: dict[str, Type] = {}

    def read(self, found: Any, space: str, path: str) -> Type:  # noqa: PLR0911  # one for each kind
        self._steps.take()
        if isinstance(found, str):
            return self._named(found, space, path)
        if isinstance(found, list):
            return self._union(found, space, path)
        if not isinstance(found, dict) or "type" not in found:
            raise _wrong(path, f"expected a type, found {json_text.compact(found)[:60]}")
        kind = found["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, space, path)
        if kind == "array":
            return Type("array", inner=[self.read(_part(found, "items", path), space, f"{path}/items")])
        if kind == "map":
            return Type("map", inner=[self.read(_part(found, "values", path), space, f"{path}/values")])
        if kind in {"record", "error", "enum", "fixed"}:
            return self._definition(found, kind, space, path)
        return self._named(kind, space, path)

    def _named(self, name: Any, space: str, path: str) -> Type:
        if not isinstance(name, str):
            raise _wrong(path, f"expected the name of a type, found {json_text.compact(name)[:60]}")
        if name in PRIMITIVES:
            return Type(name)
        found = self._names.get(name if "." in name or not space else f"{space}.{name}") or self._names.get(name)
        if found is None:
            raise _wrong(path, f"there is no type {name[:200]!r}: define it before its use, or add a reference to it")
        return found

    def _union(self, found: list[Any], space: str, path: str) -> Type:
        made = Type("union", inner=[self.read(one, space, f"{path}/{place}") for place, one in enumerate(found)])
        if not made.inner:
            raise _wrong(path, "a union needs at least one type")
        if any(one.kind == "union" for one in made.inner):
            raise _wrong(path, "a union contains a union")
        names = [str(one) for one in made.inner]
        if len(set(names)) < len(names):
            raise _wrong(path, f"a union contains a type twice: {', '.join(names)[:200]}")
        return made

    def _definition(self, found: dict[str, Any], kind: str, space: str, path: str) -> Type:
        name, space = full_name(found, space, path)
        if name in self._names or name in PRIMITIVES:
            raise _wrong(path, f"the name {name} is defined twice")
        aliases = frozenset(
            one if "." in one or not space else f"{space}.{one}" for one in _texts(found, "aliases", path)
        )
        made = self._names[name] = Type("record" if kind == "error" else kind, name, aliases)
        if made.kind == "record":
            self._fields(made, found, space, path)
        elif made.kind == "enum":
            made.symbols = _symbols(found, path)
            made.has_default = found.get("default") is not None
            if made.has_default and found["default"] not in made.symbols:
                raise _wrong(path, f"the default of enum {name} is none of its symbols")
        else:
            size = found.get("size")
            if type(size) is not int or size < 0:
                raise _wrong(path, f"the size of fixed {name} is not a whole number of at least 0")
            made.size = size
        return made

    def _fields(self, made: Type, found: dict[str, Any], space: str, path: str) -> None:
        listed = _part(found, "fields", path)
        if not isinstance(listed, list):
            raise _wrong(path, f"the fields of record {made.name} are not a list")
        names: set[str] = set()
        for place, one in enumerate(listed):
            at = f"{path}/fields/{place}"
            if not isinstance(one, dict):
                raise _wrong(at, f"expected a field, found {json_text.compact(one)[:60]}")
            name = _simple_name(one.get("name"), at)
            if name in names:
                raise _wrong(at, f"record {made.name} has two fields named {name}")
            names.add(name)
            inner = self.read(_part(one, "type", at), space, f"{at}/type")
            default = one.get("default", _MISSING)
            if default is not _MISSING and not self._fits(inner, default):
                raise _wrong(at, f"the default of field {name} is not a value of its type {inner}")
            made.fields.append(Field(name, inner, tuple(_texts(one, "aliases", at)), default is not _MISSING))

    def _fits(self, kind: Type, value: Any) -> bool:  # noqa: PLR0911  # one for each kind
        """Return whether a default value is one of the type."""
        self._steps.take()
        match kind.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int" | "long":
                most = _RANGES[kind.kind]
                return type(value) is int and -most <= value < most
            case "float" | "double":
                return type(value) in {int, float}
            case "string" | "bytes" | "fixed":
                return isinstance(value, str)
            case "enum":
                return isinstance(value, str) and value in kind.symbols
            case "array":
                return isinstance(value, list) and all(self._fits(kind.inner[0], one) for one in value)
            case "map":
                return isinstance(value, dict) and all(self._fits(kind.inner[0], one) for one in value.values())
            case "union":
                return any(self._fits(one, value) for one in kind.inner)
        return isinstance(value, dict) and all(
            self._fits(one.type, value[one.name]) if one.name in value else one.has_default for one in kind.fields
        )


def normal(found: Any) -> Any:
    """Return a schema without its optional spellings: a primitive type as an object becomes its name."""
    if isinstance(found, list):
        return [normal(one) for one in found]
    if not isinstance(found, dict):
        return found
    if set(found) == {"type"} and isinstance(found["type"], str | dict | list):
        return normal(found["type"])
    nested = {"type", "items", "values"}
    made = {name: normal(one) if name in nested else one for name, one in found.items()}
    if isinstance(found.get("fields"), list):
        made["fields"] = [_normal_field(one) for one in found["fields"]]
    return made


def _normal_field(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: normal(one) if name == "type" else one for name, one in found.items()}


def _wrong(path: str, what: str) -> InvalidSchema:
    return InvalidSchema(f"Invalid Avro schema at {path or '/'}: {what}")


def _part(found: Mapping[str, Any], name: str, path: str) -> Any:
    if name not in found:
        raise _wrong(path, f"{found.get('type')!s:.60} has no {name!r}")
    return found[name]


def _texts(found: Mapping[str, Any], name: str, path: str) -> list[str]:
    listed = found.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise _wrong(path, f"its {name} are not a list of names")
    return listed


def _simple_name(name: Any, path: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _wrong(path, f"{json_text.compact(name)[:80]} is not a name: use letters, digits and _, no digit first")
    return name


def full_name(found: Mapping[str, Any], space: str, path: str) -> tuple[str, str]:
    """Return the full name of a definition, and its namespace."""
    name = found.get("name")
    own = found.get("namespace")
    if own is not None and not isinstance(own, str):
        raise _wrong(path, "its namespace is not a text")
    if isinstance(name, str) and "." in name:
        own, _, name = name.rpartition(".")
    space = space if own is None else own
    for part in space.split(".") if space else ():
        _simple_name(part, path)
    name = _simple_name(name, path)
    return (f"{space}.{name}" if space else name), space


def _symbols(found: Mapping[str, Any], path: str) -> tuple[str, ...]:
    symbols = _part(found, "symbols", path)
    if not isinstance(symbols, list):
        raise _wrong(path, "the symbols of an enum are not a list")
    names = tuple(_simple_name(one, path) for one in symbols)
    if len(set(names)) < len(names):
        raise _wrong(path, "an enum has a symbol twice")
    return names
