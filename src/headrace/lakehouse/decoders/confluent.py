"""Decode values in Confluent's wire format: a zero byte, a schema ID, and the value.

Source: Confluent's documentation, "Wire format" of Schema Registry. Protobuf has message indexes after the ID.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.avro_values import AvroDecoder
from headrace.lakehouse.decoders.json_schema import parse
from headrace.lakehouse.decoders.json_values import JsonDecoder
from headrace.lakehouse.decoders.kinds import Kind
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.lakehouse.decoders.protobuf_values import ProtobufDecoder
from headrace.lakehouse.decoders.refit import refitted
from headrace.lakehouse.decoders.schema_registry import RegistryRefused, Schema
from headrace.lakehouse.write.columns import Decoded, grown, widened

_PREFIX: Final = 5
_MOST_INDEXES: Final = 64
_MOST_DECODERS: Final = 1_000
"""Maximum number of cached decoders, one per schema and message."""
_MOST_UNKNOWN: Final = 20
"""Maximum number of unknown IDs requested from a registry per batch: each is a request."""


class Schemas(Protocol):
    """Schemas by ID; see `schema_registry.Registry`."""

    def schema(self, number: int) -> Schema | None:
        """Return the schema of an ID, or None. Raise OptionError if it is unusable."""

    def asks(self, number: int) -> bool:
        """Return whether a schema takes a request or file access."""


class _Decoder(Protocol):
    @property
    def kind(self) -> Kind | None: ...

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded: ...


class WireDecoder:
    """Decodes each value by its own schema."""

    def __init__(self, registry: Schemas, message: str | None = None) -> None:
        """Prepare. The Protobuf name `message` overrides the indexes."""
        self._registry = registry
        self._message = message
        self._decoders: dict[tuple[int, tuple[int, ...]], _Decoder | OptionError] = {}
        self._descriptors: dict[int, bytes | OptionError] = {}

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values; see `Decoder`."""
        whole = values.to_pylist()
        reasons: Faults = {}
        columns = known
        parts: list[tuple[list[int], pa.StructArray]] = []
        for decoder, rows, encoded in self._encoded(whole, reasons):
            found = decoder.decode(encoded, columns)
            made = refitted(found.columns, columns, found.reasons)
            reasons |= {rows[row]: why for row, why in found.reasons.items()}
            if len(found.reasons) < len(rows):  # otherwise the schema adds no columns
                columns = grown(columns, pa.schema(list(made.type)))
                parts.append((rows, made))
        return Decoded(_in_order(parts, columns, len(values)), reasons)

    def apart(self, whole: list[bytes]) -> tuple[list[tuple[list[int], Kind, pa.StructArray]], Faults]:
        """Return rows, kind and columns of the values of each schema, and why others cannot be decoded."""
        reasons: Faults = {}
        parts: list[tuple[list[int], Kind, pa.StructArray]] = []
        for decoder, rows, encoded in self._encoded(whole, reasons):
            found = decoder.decode(encoded, pa.schema([]))
            reasons |= {rows[row]: why for row, why in found.reasons.items()}
            if decoder.kind is not None:
                parts.append((rows, decoder.kind, found.columns))
        return parts, reasons

    def _encoded(self, whole: list[bytes], reasons: Faults) -> Iterator[tuple[_Decoder, list[int], pa.Array]]:
        """Yield each schema's decoder with the rows and bytes of its values."""
        for (number, indexes), places in self._by_schema(whole, reasons).items():
            decoder = self._decoder(number, indexes)
            if isinstance(decoder, OptionError):
                reasons |= dict.fromkeys((row for row, _ in places), str(decoder)[:500])
                continue
            encoded = pa.array([whole[row][start:] for row, start in places], pa.binary())
            yield decoder, [row for row, _ in places], encoded

    def _by_schema(
        self, whole: list[bytes], reasons: Faults
    ) -> dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]]:
        found: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
        numbers: dict[int, int] = {}
        for row, value in enumerate(whole):
            if len(value) < _PREFIX or value[0] != 0:
                reasons[row] = "not in Confluent's wire format: it begins with 0 and a schema's id of four bytes"
            else:
                numbers[row] = int.from_bytes(value[1:_PREFIX], "big")
        schemas = self._schemas(Counter(numbers.values()))
        for row, number in numbers.items():
            schema = schemas[number]
            if isinstance(schema, str):
                reasons[row] = schema
                continue
            try:
                indexes, start = _indexes(whole[row]) if schema.kind == "PROTOBUF" else ((), _PREFIX)
            except (ValueError, IndexError):
                reasons[row] = "not in Confluent's wire format: its message indexes are none"
                continue
            found.setdefault((number, indexes), []).append((row, start))
        return found

    def _schemas(self, numbers: Counter[int]) -> dict[int, Schema | str]:
        found: dict[int, Schema | str] = {}
        left = _MOST_UNKNOWN
        for number, _ in numbers.most_common():
            asks = self._registry.asks(number)
            if asks and not left:
                found[number] = (
                    f"schema {number} was not looked up: the batch has more than {_MOST_UNKNOWN} ids without a schema"
                )
                continue
            found[number] = self._schema(number)
            if asks and isinstance(found[number], str):
                left -= 1
        return found

    def _schema(self, number: int) -> Schema | str:
        try:
            return self._registry.schema(number) or f"there is no schema of id {number}"
        except RegistryRefused:
            raise
        except OptionError as error:
            return str(error)

    def _decoder(self, number: int, indexes: tuple[int, ...]) -> _Decoder | OptionError:
        if len(self._decoders) > _MOST_DECODERS:
            self._decoders.clear()
        key = number, indexes
        if key not in self._decoders:
            try:
                self._decoders[key] = self._made(number, indexes)
            except OptionError as error:
                self._decoders[key] = error
        return self._decoders[key]

    def _made(self, number: int, indexes: tuple[int, ...]) -> _Decoder:
        schema = self._registry.schema(number)
        assert schema is not None
        where = f"schema {number}"
        if schema.kind == "AVRO":
            return AvroDecoder(schema.text, where, schema.others)
        if schema.kind == "JSON":
            return JsonDecoder(parse(schema.text, where, lambda name: _referred(schema, name)))
        if schema.kind != "PROTOBUF":
            raise OptionError(f"{where} is of a kind that is not known: {schema.kind[:60]}")
        descriptors = self._descriptors.get(number)
        if descriptors is None:
            try:
                descriptors = schema.descriptors or compiled(schema.text, where, schema.others, schema.folder)
            except OptionError as error:
                descriptors = error
            self._descriptors[number] = descriptors
        if isinstance(descriptors, OptionError):
            raise descriptors
        return ProtobufDecoder(descriptors, self._message, where, indexes=indexes)


def _referred(schema: Schema, name: str) -> str | None:
    if name in schema.others:
        return schema.others[name]
    path = Path(schema.folder or "") / name
    if schema.folder is None or "/" in name or "\0" in name or not path.is_file():
        return None
    return path.read_text("utf-8", errors="replace")


def _in_order(parts: list[tuple[list[int], pa.StructArray]], columns: pa.Schema, count: int) -> pa.StructArray:
    kind = pa.struct(list(columns))
    whole = pa.concat_arrays([*(widened(part, columns) for _, part in parts), pa.nulls(1, kind)])
    null = len(whole) - 1
    places = [null] * count
    for at, row in enumerate(row for rows, _ in parts for row in rows):
        places[row] = at
    return whole.take(pa.array(places, pa.int64()))


def _indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return Protobuf's message indexes (a single 0 is the first message) and the message's start."""
    count, at = _varint(value, _PREFIX)
    if not 0 <= count <= _MOST_INDEXES:
        raise ValueError(count)
    found = []
    for _ in range(count):
        index, at = _varint(value, at)
        if index < 0:
            raise ValueError(index)
        found.append(index)
    return tuple(found) or (0,), at


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError(number)
