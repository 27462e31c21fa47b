"""Whether a reader with one Avro schema can read data that was written with another.

Source: Apache Avro 1.12, Specification: "Schema Resolution". `avro.compatibility` of the package avro has the same
rules, and tests compare both.
"""

from typing import Final

from headrace.schemas.avro import Field, Type
from headrace.schemas.errors import DEEPEST, InvalidSchema, Steps
from headrace.schemas.model import Difference

_PROMOTED: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "bytes": {"string"},
    "string": {"bytes"},
}
"""Type of a reader -> types of writers that it can read, too."""
_MOST_FOUND: Final = 50
"""Maximum differences that are reported."""

Found = tuple[Difference, ...]


class Comparison:
    """Compares pairs of types. Each pair is compared once."""

    def __init__(self, steps: Steps) -> None:
        """`steps` is the budget."""
        self._steps = steps
        self._known: dict[tuple[int, int], Found] = {}
        self._depth = 0

    def differences(self, reader: Type, writer: Type, path: str = "") -> Found:
        """Return why the reader cannot read what the writer writes; empty: it can.

        Raises:
            InvalidSchema: The comparison takes too many steps, or types are nested too deeply.
        """
        self._steps.take()
        if reader.kind == writer.kind and reader.kind not in _COMPARED:
            return ()
        pair = (id(reader), id(writer))
        known = self._known.get(pair)
        if known is not None:
            return known
        self._known[pair] = ()  # a recursive type is compatible unless another part of it is not
        self._depth += 1
        if self._depth > DEEPEST:
            raise InvalidSchema(f"The schema is too complex: more than {DEEPEST} types are nested in one another")
        found = self._known[pair] = self._compare(reader, writer, path)[:_MOST_FOUND]
        self._depth -= 1
        return found

    def _compare(self, reader: Type, writer: Type, path: str) -> Found:
        if writer.kind == "union":
            return self._from_union(reader, writer, path)
        if reader.kind == "union":
            if any(not self.differences(one, writer, path) for one in reader.inner):
                return ()
            return (Difference("MISSING_UNION_BRANCH", path, f"the reader union lacks the writer type {writer}"),)
        if reader.kind == writer.kind:
            return self._same_kind(reader, writer, path)
        if writer.kind in _PROMOTED.get(reader.kind, ()):
            return ()
        return (Difference("TYPE_MISMATCH", path, f"the reader type {reader.kind} cannot read the type {writer.kind}"),)

    def _from_union(self, reader: Type, writer: Type, path: str) -> Found:
        found: list[Difference] = []
        for place, one in enumerate(writer.inner):
            here = self.differences(reader, one, f"{path}/{place}")
            if here and reader.kind == "union":
                here = (
                    Difference(
                        "MISSING_UNION_BRANCH", f"{path}/{place}", f"the reader union lacks the writer type {one}"
                    ),
                )
            found += here
        return tuple(found)

    def _same_kind(self, reader: Type, writer: Type, path: str) -> Found:  # noqa: PLR0911  # one for each kind
        if reader.kind in {"array", "map"}:
            part = "items" if reader.kind == "array" else "values"
            return self.differences(reader.inner[0], writer.inner[0], f"{path}/{part}")
        if reader.short != writer.short and writer.name not in reader.aliases:
            return (
                Difference("NAME_MISMATCH", f"{path}/name", f"expected the name {writer.name}, found {reader.name}"),
            )
        if reader.kind == "fixed":
            if reader.size == writer.size:
                return ()
            return (
                Difference("FIXED_SIZE_MISMATCH", f"{path}/size", f"expected {writer.size} bytes, found {reader.size}"),
            )
        if reader.kind == "enum":
            missing = sorted(set(writer.symbols) - set(reader.symbols))
            if not missing or reader.has_default:
                return ()
            text = f"the reader enum lacks the symbols {', '.join(missing)[:200]}"
            return (Difference("MISSING_ENUM_SYMBOLS", f"{path}/symbols", text),)
        return self._fields(reader, writer, path)

    def _fields(self, reader: Type, writer: Type, path: str) -> Found:
        found: list[Difference] = []
        by_name = {one.name: one for one in writer.fields}
        self._steps.take(len(writer.fields))
        for place, each in enumerate(reader.fields):
            at = f"{path}/fields/{place}"
            other = _written(each, by_name)
            if other is not None:
                found += self.differences(each.type, other.type, f"{at}/type")
            elif not each.has_default:
                text = f"the field {each.name} has no default value, and the writer schema does not contain it"
                found.append(Difference("READER_FIELD_MISSING_DEFAULT_VALUE", at, text))
        return tuple(found[:_MOST_FOUND])


_COMPARED: Final = frozenset({"array", "map", "union", "record", "enum", "fixed"})
"""Kinds that can differ from themselves."""


def _written(reader: Field, by_name: dict[str, Field]) -> Field | None:
    return next((by_name[name] for name in (reader.name, *reader.aliases) if name in by_name), None)
