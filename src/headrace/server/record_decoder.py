"""Decode records for the console with the archive's decoder and the schemas of the server's registry."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from headrace.client.errors import OptionError
from headrace.console.record_worker import MOST_DECODED, Decode, Decoded, Parts
from headrace.records.walk import Record
from headrace.schema_registry.calls import topic_of
from headrace.schema_registry.registry import Registry
from headrace.schemas.errors import RegistryError
from headrace.schemas.model import Version
from headrace.schemas.protobuf import descriptor_set
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.lakehouse.decoders.confluent import WireDecoder
    from headrace.lakehouse.decoders.schema_registry import Schema

_HEADERS: Final = ("__key_schema_id", "__value_schema_id")
"""Newer clients write the schema's GUID into a header, and no prefix."""
_PREFIX: Final = 5
_GUID: Final = 17
_MOST_SCHEMAS: Final = 100
"""Maximum schemas that a page loads."""
_MOST_SCHEMA_BYTES: Final = 256 << 10
_NAMES: Final = {"AVRO": "Avro", "JSON": "JSON", "PROTOBUF": "Protobuf"}
_CONTENT: Final = "content"
_BEFORE, _AFTER = f'{{"{_CONTENT}": ', "}"


class RegistryDecoder:
    """Implements `headrace.console.record_worker.RecordDecoder`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def prepare(self, records: Sequence[Record], visible: Callable[[str], bool]) -> Decode:
        """See `RecordDecoder`."""
        numbers = {
            number
            for record in records
            for place in (0, 1)
            if (number := self._reference(record, place)[0]) is not None
        }
        loaded: dict[int, Any] = {}
        for number in sorted(numbers):
            if len(loaded) < _MOST_SCHEMAS:
                loaded[number] = await self._load(number, visible)
            else:
                loaded[number] = f"the page has values of more than {_MOST_SCHEMAS} schemas"
        return partial(self._decode, loaded, {})

    async def _load(self, number: int, visible: Callable[[str], bool]) -> "tuple[str, Schema] | str":
        versions = [one for one in self._registry.index.by_id(number) if visible(topic_of(one.subject))]
        if not versions:
            return f"there is no schema of id {number}"
        if versions[0].size > _MOST_SCHEMA_BYTES:
            return f"schema {number} is larger than {_MOST_SCHEMA_BYTES >> 10} KiB"
        try:
            return await self._usable(versions[0])
        except (RegistryError, ImportError, ValueError) as error:
            return f"schema {number}: {error}"

    async def _usable(self, version: Version) -> "tuple[str, Schema] | str":
        schema, referenced = await self._registry.with_references(version)
        try:
            from headrace.lakehouse.decoders.schema_registry import Schema as Archived  # noqa: PLC0415  # an extra
        except ImportError as error:
            return extras.explained("decoding on the server", error)
        others = {one.name: one.schema.text for one in referenced}
        text = schema.text
        if schema.type == "AVRO":
            # The archive decodes records. Any type becomes one as its only field, with the same encoding.
            field = {"name": _CONTENT, "type": json.loads(text)}
            text = json.dumps({"type": "record", "name": "headrace_content", "fields": [field]})
        descriptors = descriptor_set(schema.descriptor, referenced) if schema.type == "PROTOBUF" else b""
        return _NAMES[schema.type], Archived(schema.type, text, others, descriptors=descriptors)

    def _reference(self, record: Record, place: int) -> tuple[int | None, bytes]:
        """Return the schema's ID of a key (0) or value (1), and its bytes with the prefix. None: it names none."""
        data = record.value if place else record.key
        if data is None:
            return None, b""
        for name, value in record.headers:
            if name == _HEADERS[place] and value is not None:
                if value[:1] == b"\1" and len(value) >= _GUID:
                    number = self._registry.index.id_of(str(UUID(bytes=bytes(value[1:_GUID]))))
                    if number is not None:
                        return number, b"\0" + number.to_bytes(4, "big") + value[_GUID:] + data
                if value[:1] == b"\0" and len(value) >= _PREFIX:
                    return int.from_bytes(value[1:_PREFIX], "big"), value + data
        if data[:1] != b"\0" or len(data) < _PREFIX:
            return None, b""
        return int.from_bytes(data[1:_PREFIX], "big"), data

    def _decode(
        self,
        loaded: "Mapping[int, tuple[str, Schema] | str]",
        decoders: "dict[str, WireDecoder]",
        records: Sequence[Record],
    ) -> list[Parts]:
        columns = []
        for place in (0, 1):
            references = [self._reference(record, place) for record in records]
            found: list[Decoded | None] = [None] * len(records)
            wire: list[int] = []
            for row, (number, data) in enumerate(references):
                if number is None:
                    continue
                schema = loaded.get(number, f"schema {number} was not loaded")
                if isinstance(schema, str):
                    found[row] = Decoded(fault=schema)
                elif len(data) > MOST_DECODED:
                    found[row] = Decoded(fault=f"larger than {MOST_DECODED >> 10} KiB")
                elif schema[1].kind == "JSON":
                    found[row] = _json(f"JSON, schema {number}", data[_PREFIX:])
                else:
                    wire.append(row)
            if wire:
                decoder = decoders.get("wire") or decoders.setdefault("wire", _decoder(loaded))
                made = _decoded(decoder, [references[row][1] for row in wire])
                for row, (text, fault) in zip(wire, made, strict=True):
                    number = references[row][0] or 0
                    name = loaded[number][0]
                    if text is not None and name == _NAMES["AVRO"]:
                        found[row] = Decoded(f"{name}, schema {number}", _inner(text))
                    else:
                        found[row] = Decoded(f"{name}, schema {number}", text, fault)
            columns.append(found)
        return list(zip(*columns, strict=True))


def _inner(text: str) -> str:
    """Return the content without the record that was added around it."""
    return text.removeprefix(_BEFORE).removesuffix(_AFTER)


def _json(schema: str, data: bytes) -> Decoded:
    """JSON describes itself: the console shows it whole, with fields that a schema does not have."""
    try:
        text = data.decode()
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Decoded(schema, fault=f"not JSON: {error!s:.200}")
    return Decoded(schema, text)


class _Loaded:
    """Implements `headrace.lakehouse.decoders.confluent.Schemas`."""

    def __init__(self, loaded: "Mapping[int, tuple[str, Schema] | str]") -> None:
        self._loaded = loaded

    def schema(self, number: int) -> "Schema | None":
        found = self._loaded.get(number)
        return None if found is None or isinstance(found, str) else found[1]

    def asks(self, number: int) -> bool:
        return False


def _decoder(loaded: "Mapping[int, tuple[str, Schema] | str]") -> "WireDecoder":
    from headrace.lakehouse.decoders.confluent import WireDecoder  # noqa: PLC0415  # an extra

    return WireDecoder(_Loaded(loaded))


def _decoded(decoder: "WireDecoder", values: list[bytes]) -> list[tuple[str | None, str]]:
    """Return the text of each value, or why there is none."""
    from headrace.lakehouse.decoders.arrays import row_texts  # noqa: PLC0415  # an extra

    try:
        parts, reasons = decoder.apart(values)
        found: list[tuple[str | None, str]] = [(None, reasons.get(row, "")) for row in range(len(values))]
        for rows, kind, columns in parts:
            for row, text in zip(rows, row_texts(kind, columns), strict=True):
                if row not in reasons:
                    found[row] = text, ""
    except OptionError as error:
        return [(None, str(error))] * len(values)
    except Exception as error:  # a library may raise any error
        if len(values) == 1:
            return [(None, f"{type(error).__name__}: {error!s:.200}")]
        return [_decoded(decoder, [value])[0] for value in values]
    return found
