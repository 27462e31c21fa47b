"""The notation of the message tables, and its parser.

A message is a line without indentation. Its fields are indented by two spaces, and those of a structure by two more:

    ProduceRequest key 0 versions 0-13 flexible 9
      transactional_id    string?       3+      = null
      topic_data          []TopicProduceData
        name              string        0-12

A field has a name and a type, and optionally its versions, `#n` for tagged field n, and `= default`, in this order.
Types are bool, int8, int16, uint16, int32, uint32, int64, float64, string, bytes, records, uuid, or a structure. `[]`
before the type makes an array. `?` after it makes it nullable (`?7+` from version 7 on). Later uses of a structure in a
message have no fields.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

ENDLESS: Final = 0x7FFF
"""The `high` of a range without an upper end: versions are int16."""

FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Types of fixed width and their format characters in `struct`."""

VARIABLE: Final = frozenset({"string", "bytes", "records"})

ZERO_UUID: Final = UUID(int=0)

_MESSAGE = re.compile(r"(\w+) key (\d+) versions (\d+)-(\d+)(?: flexible (\d+))?")
_FIELD = re.compile(r"(\w+) +(\[\])?(\w+)(?:(\?)(?:(\d+)\+)?)?(?: +(\d+)(?:(\+)|-(\d+))?)?(?: +#(\d+))?(?: += +(\S+))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `kind` is a primitive type or the name of its structure."""

    name: str
    kind: str
    is_array: bool
    struct: "Structure | None"
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Any
    """The value for "not given". For arrays (`[]`) and structures (`None`) this is a new empty one."""

    @property
    def may_be_none(self) -> bool:
        """Whether the value may be None."""
        is_struct = self.struct is not None and not self.is_array
        return self.nullable is not None or self.kind == "records" or (is_struct and self.tag is not None)

    def element(self) -> "Field":
        """Return the field of an array's element."""
        return replace(self, is_array=False, nullable=None, tag=None)

    def nullable_in(self, version: int) -> bool:
        """Return whether a version has null."""
        return self.nullable is not None and version in self.nullable


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure with its fields in wire order."""

    name: str
    fields: tuple[Field, ...]

    def plain(self, version: int) -> list[Field]:
        """Return the untagged fields of a version."""
        return [field for field in self.fields if version in field.versions and field.tag is None]

    def tagged(self, version: int) -> list[Field]:
        """Return the tagged fields of a version, by tag."""
        found = [field for field in self.fields if version in field.versions and field.tag is not None]
        return sorted(found, key=lambda field: field.tag or 0)

    def nested(self) -> "list[Structure]":
        """Return the structures below this one, inner ones first."""
        found: list[Structure] = []
        for field in self.fields:
            if field.struct is not None and field.struct not in found:
                found.extend(inner for inner in field.struct.nested() if inner not in found)
                found.append(field.struct)
        return found


@dataclass(frozen=True, slots=True)
class MessageTable:
    """A request or response. Without flexible versions, `flexible_from` is above all versions."""

    api_key: int
    versions: Versions
    flexible_from: int
    root: Structure


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    depth: int
    text: str


def parse(table: str) -> list[MessageTable]:
    """Return the messages of a table. Raises ValueError with the line number."""
    lines = [_read_line(number, text) for number, text in enumerate(table.splitlines(), 1) if text.strip()]
    starts = [index for index, line in enumerate(lines) if line.depth == 0]
    return [_parse_message(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]


def _read_line(number: int, text: str) -> _Line:
    body = text.lstrip(" ")
    margin = len(text) - len(body)
    if margin % 2:
        raise ValueError(f"line {number}: odd indentation")
    return _Line(number, margin // 2, body.rstrip())


def _parse_message(lines: list[_Line]) -> MessageTable:
    match = _MESSAGE.fullmatch(lines[0].text)
    if match is None:
        raise ValueError(f"line {lines[0].number}: not a message: {lines[0].text}")
    name, key, low, high, flexible = match.groups()
    versions = Versions(int(low), int(high))
    root = Structure(name, _parse_fields(lines[1:], 1, {}))
    return MessageTable(int(key), versions, int(flexible) if flexible else ENDLESS, root)


def _parse_fields(lines: list[_Line], depth: int, known: dict[str, Structure]) -> tuple[Field, ...]:
    starts = [index for index, line in enumerate(lines) if line.depth == depth]
    if lines and (not starts or starts[0] != 0):
        raise ValueError(f"line {lines[0].number}: indented too far")
    ends = [*starts[1:], len(lines)]
    return tuple(_parse_field(lines[a], lines[a + 1 : b], known) for a, b in zip(starts, ends, strict=True))


def _parse_field(line: _Line, inner: list[_Line], known: dict[str, Structure]) -> Field:
    match = _FIELD.fullmatch(line.text)
    if match is None:
        raise ValueError(f"line {line.number}: not a field: {line.text}")
    name, array, kind, null, null_from, low, endless, high, tag, default = match.groups()
    struct = _find_struct(line, kind, inner, known)
    last = ENDLESS if endless or low is None else int(high or low)
    return Field(
        name=name,
        kind=kind,
        is_array=array is not None,
        struct=struct,
        versions=Versions(int(low or 0), last),
        nullable=Versions(int(null_from or 0), ENDLESS) if null else None,
        tag=None if tag is None else int(tag),
        default=_default(kind, array is not None, default),
    )


def _find_struct(line: _Line, kind: str, inner: list[_Line], known: dict[str, Structure]) -> Structure | None:
    if kind in FIXED or kind in VARIABLE:
        if inner:
            raise ValueError(f"line {inner[0].number}: {kind} has no fields")
        return None
    if inner:
        known[kind] = Structure(kind, _parse_fields(inner, line.depth + 1, known))
    if kind not in known:
        raise ValueError(f"line {line.number}: unknown type {kind}")
    return known[kind]


def _default(kind: str, is_array: bool, text: str | None) -> Any:
    if text == "null":
        return None
    if is_array:
        return []
    if text is None:
        return {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.0}.get(
            kind, 0 if kind in FIXED else None
        )
    return text == "true" if kind == "bool" else int(text)
