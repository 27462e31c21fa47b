"""The three formats of schemas behind one interface, and the compatibility levels over them."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.schemas import avro, json_compatibility, json_schema, json_text, protobuf
from headrace.schemas.avro_compatibility import Comparison as AvroComparison
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import TYPES, Difference, Level, Parsed, Reference, Referenced, Schema
from headrace.schemas.protobuf import Compiler

_MOST_MESSAGES: Final = 50
_MOST_NAMES: Final = 1_000
"""Maximum names of a schema. Further messages of a Protobuf file have no subject."""


def parse(
    kind: str,
    text: str,
    references: tuple[Reference, ...],
    referenced: Sequence[Referenced],
    steps: Steps,
    compiler: Compiler | None = None,
    *,
    normalize: bool = False,
) -> Parsed:
    """Return the parsed schema of a request.

    Args:
        kind: its type.
        text: as the client sent it.
        references: as the client sent them.
        referenced: these schemas and all that they refer to, in order of dependency.
        steps: the budget.
        compiler: compiles Protobuf.
        normalize: whether to ignore optional spellings.

    Raises:
        InvalidSchema: The schema is invalid.
    """
    if kind == "PROTOBUF":
        files, written, descriptor = protobuf.read(text, referenced, steps, compiler)
        if normalize:
            written = protobuf.rewritten(descriptor)
        return Parsed(kind, written, _guid(kind, descriptor, references), files, descriptor)
    if kind not in TYPES:
        raise InvalidSchema(f"Invalid schema type {kind[:40]!r}: expected one of {', '.join(TYPES)}")
    document = json_text.parse(text, steps)
    content: Any
    if kind == "AVRO":
        content = avro.parse(document, referenced, steps)
        document = avro.normal(document) if normalize else document
    else:
        content = json_schema.parse(document, referenced, steps)
    ordered = json_text.sorted_text(document)
    written = ordered if normalize and kind == "JSON" else json_text.compact(document)
    return Parsed(kind, written, _guid(kind, ordered.encode(), references), content)


def stored(schema: Schema, referenced: Sequence[Referenced], steps: Steps) -> Any:
    """Return the content of a stored schema for comparisons. Raises InvalidSchema."""
    if schema.type == "PROTOBUF":
        return protobuf.stored(schema.descriptor, referenced, steps)
    document = json_text.parse(schema.text, steps)
    if schema.type == "AVRO":
        return avro.parse(document, referenced, steps)
    return json_schema.Documents(document, referenced, steps)


def _guid(kind: str, content: bytes, references: tuple[Reference, ...]) -> str:
    """Return the GUID, which is the same for equal schemas."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(msgspec.json.encode((kind, sorted((one.name, one.subject, one.version) for one in references))))
    digest.update(content)
    return str(UUID(bytes=digest.digest()))


def differences(kind: str, reader: Any, writer: Any, steps: Steps) -> tuple[Difference, ...]:
    """Return why the reader cannot read what the writer writes; empty: it can. Raises InvalidSchema."""
    if kind == "AVRO":
        return AvroComparison(steps).differences(reader, writer)
    if kind == "JSON":
        return json_compatibility.compare(writer, reader, steps, json_compatibility.linear_matches)
    return protobuf.Comparison(writer, reader, steps).differences()


class Earlier(msgspec.Struct, frozen=True):
    """An earlier version of a subject."""

    version: int
    type: str
    content: Any


def incompatibilities(level: Level, new: Parsed, earlier: Iterable[Earlier], steps: Steps) -> list[str]:
    """Return why a schema violates a compatibility level; empty: it does not.

    Args:
        level: the level.
        new: the new schema.
        earlier: the versions that count, the latest first.
        steps: the budget.

    Raises:
        InvalidSchema: The comparison takes too many steps.
    """
    found: list[str] = []
    for each in earlier:
        where = f"{{oldSchemaVersion: {each.version}}}, {{compatibility: '{level.value}'}}"
        if each.type != new.type:
            found.append(
                f"{{errorType:'TYPE_MISMATCH', description:'the type was {each.type} and is {new.type}'}}, {where}"
            )
            continue
        if level.backward:
            found += [f"{one}, {where}" for one in differences(new.type, new.content, each.content, steps)]
        if level.forward:
            found += [f"{one}, {where}" for one in differences(new.type, each.content, new.content, steps)]
        if len(found) >= _MOST_MESSAGES:
            break
    return found[:_MOST_MESSAGES]


def record_names(schema: Schema, steps: Steps) -> frozenset[str]:
    """Return the names of the records of a stored schema, which name subjects (`RecordNameStrategy`).

    - Avro: the full name of the record, enum or fixed type. Other types have none.
    - JSON Schema: the title.
    - Protobuf: the full names of the first messages of the file. The ID of a value names the file only.

    Raises RegistryError if the schema takes too many steps.
    """
    if schema.type == "PROTOBUF":
        return frozenset(islice(protobuf.message_names(schema.descriptor), _MOST_NAMES))
    document = json_text.parse(schema.text, steps)
    if not isinstance(document, dict):
        return frozenset()
    if schema.type == "AVRO":
        named = document.get("type") in {"record", "enum", "fixed"}
        return frozenset([avro.full_name(document, "", "")[0]] if named else [])
    title = document.get("title")
    return frozenset([title] if isinstance(title, str) and title else [])
