"""The notation in which the messages are written down, and its parser.

A table is text. A message opens at the left margin; its fields follow, indented by two spaces, fields of a
structure by two more:

    ProduceRequest key 0 versions 0-13 flexible 9
      transactional_id    string?       3+      = null
      topic_data          []TopicProduceData
        name              string        0-12

A field has a name, a type and, in this order and each optional: the versions that have it, `#n` when it is the
tagged field n, and `= default`. Types: bool, int8, int16, uint16, int32, uint32, int64, float64, string, bytes,
records, uuid, or the name of a structure; `[]` before the type makes an array, `?` after it makes the field
nullable (`?7+` from version 7 on). A structure spelled out earlier in the message is named again without fields.
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
    """One field: `kind` is a primitive type's name or, with `struct` set, the structure's."""

    name: str
    kind: str
    is_array: bool
    struct: "Structure | None"
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Any
    """The value that stands for "not given"; an array's `[]` and a structure's `None` mean a new empty one."""

    @property
    def may_be_none(self) -> bool:
        """Whether a message may hold None here: a nullable field, or a tagged structure that was not sent."""
        is_struct = self.struct is not None and not self.is_array
        return self.nullable is not None or self.kind == "records" or (is_struct and self.tag is not None)

    def element(self) -> "Field":
        """An array's element as a field of its own."""
        return replace(self, is_array=False, nullable=None, tag=None)

    def nullable_in(self, version: int) -> bool:
        """Whether null can be written in this version."""
        return self.nullable is not None and version in self.nullable


@dataclass(frozen=True, slots=True)
class Structure:
    """A structure with its fields in wire order."""

    name: str
    fields: tuple[Field, ...]

    def plain(self, version: int) -> list[Field]:
        """The untagged fields that this version has."""
        return [field for field in self.fields if version in field.versions and field.tag is None]

    def tagged(self, version: int) -> list[Field]:
        """The tagged fields that this version has, by tag."""
        found = [field for field in self.fields if version in field.versions and field.tag is not None]
        return sorted(found, key=lambda field: field.tag or 0)

    def nested(self) -> "list[Structure]":
        """The structures below this one, each once, inner ones first."""
        found: list[Structure] = []
        for field in self.fields:
            if field.struct is not None and field.struct not in found:
                found.extend(inner for inner in field.struct.nested() if inner not in found)
                found.append(field.struct)
        return found


@dataclass(frozen=True, slots=True)
class MessageTable:
    """A request or response; `flexible_from` is above all versions when none is flexible."""

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
    """The messages of a table, in order; ValueError with the line number when it does not follow the notation."""
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
    """The fields at `depth`; deeper lines belong to the field above them. Adds their structures to `known`."""
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
    """The default as a value: Kafka's own where the table names none."""
    if text == "null":
        return None
    if is_array:
        return []
    if text is None:
        return {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.0}.get(
            kind, 0 if kind in FIXED else None
        )
    return text == "true" if kind == "bool" else int(text)
