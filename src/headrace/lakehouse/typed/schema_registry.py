"""Confluent's wire format: a zero byte, a schema's id, the value; schemas come from a folder or a registry.

Source: Confluent's documentation, "Wire format" of Schema Registry; Protobuf has message indexes behind the id.
"""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.client.errors import OptionError, StoreUnavailable
from headrace.lakehouse.typed import json_values, protobuf_values
from headrace.lakehouse.typed.avro_values import AvroDecoder
from headrace.lakehouse.typed.protobuf_values import ProtobufDecoder
from headrace.lakehouse.write.columns import Decoded, conflict, grown, widened

_PREFIX: Final = 5
_TIMEOUT_S: Final = 10.0
_LONGEST: Final = 4 << 20
_ENDINGS: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


class Schema(NamedTuple):
    """A schema as a registry has it."""

    kind: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    text: str


class _Decoder(Protocol):
    def decode(self, values: pa.Array) -> Decoded: ...


class Registry:
    """Schemas by id; each is asked for once in a process."""

    def __init__(self, place: str) -> None:
        """`place`: a folder with files `<id>.avsc`, `<id>.json`, `<id>.proto`, or the URL of a registry."""
        self._place = place
        self._found: dict[int, Schema | None] = {}

    def schema(self, number: int) -> Schema | None:
        """The schema of that id; None when there is none.

        Raises:
            StoreUnavailable: the registry does not answer: whether there is one is not known.
        """
        if number not in self._found:
            remote = self._place.startswith(("http://", "https://"))
            found = self._ask(number) if remote else self._look(number)
            if found is None:
                return None  # it may come
            self._found[number] = found
        return self._found[number]

    def _look(self, number: int) -> Schema | None:
        for ending, kind in _ENDINGS.items():
            path = Path(self._place) / f"{number}{ending}"
            if path.is_file():
                return Schema(kind, path.read_text("utf-8"))
        return None

    def _ask(self, number: int) -> Schema | None:
        parts = urllib.parse.urlsplit(self._place)
        host = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(f"{parts.scheme}://{host}{parts.path.rstrip('/')}/schemas/ids/{number}")
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            request.add_header("authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(_LONGEST))
            return Schema(str(found.get("schemaType", "AVRO")).upper(), str(found["schema"]))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise StoreUnavailable(f"the schema registry at {host} answers {error.code} for id {number}") from None
        except (OSError, ValueError, KeyError) as error:
            raise StoreUnavailable(f"the schema registry at {host} does not answer: {error}") from None


class WireDecoder:
    """Decodes values in the wire format, each by the schema that it names."""

    def __init__(self, registry: Registry, known: pa.Schema, message: str | None = None) -> None:
        """`known`: the table's columns of values, which those of a schema must fit."""
        self._registry = registry
        self._known = known
        self._message = message
        self._decoders: dict[tuple[int, tuple[int, ...]], _Decoder] = {}

    def decode(self, values: pa.Array) -> Decoded:
        """Values without nulls."""
        whole = values.to_pylist()
        reasons: dict[int, str] = {}
        by_schema: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
        for row, head in enumerate(whole):
            if len(head) < _PREFIX or head[0] != 0:
                reasons[row] = "not in Confluent's wire format: it begins with 0 and a schema's id of four bytes"
                continue
            number = int.from_bytes(head[1:_PREFIX], "big")
            schema = self._registry.schema(number)
            if schema is None:
                reasons[row] = f"there is no schema of id {number}"
                continue
            indexes, behind = _indexes(head) if schema.kind == "PROTOBUF" else ((), _PREFIX)
            by_schema.setdefault((number, indexes, behind), []).append(row)
        columns = self._known
        parts: list[tuple[list[int], pa.StructArray]] = []
        for (number, indexes, behind), places in by_schema.items():
            try:
                decoder = self._decoder(number, indexes)
            except OptionError as error:
                reasons |= dict.fromkeys(places, str(error))
                continue
            found = decoder.decode(pa.array([whole[row][behind:] for row in places], pa.binary()))
            against = conflict(columns, pa.schema(list(found.columns.type)))
            if against is not None:
                reasons |= dict.fromkeys(places, against)
                continue
            reasons |= {places[row]: why for row, why in found.reasons.items()}
            columns = grown(columns, pa.schema(list(found.columns.type)))
            parts.append((places, found.columns))
        return Decoded(_in_order(parts, columns, len(values)), reasons)

    def _decoder(self, number: int, indexes: tuple[int, ...]) -> _Decoder:
        known = self._decoders.get((number, indexes))
        if known is not None:
            return known
        schema = self._registry.schema(number)
        assert schema is not None
        where = f"schema {number}"
        made: _Decoder
        if schema.kind == "AVRO":
            made = AvroDecoder(schema.text, where)
        elif schema.kind == "JSON":
            made = json_values.JsonDecoder(json_values.parse(schema.text, where))
        elif schema.kind == "PROTOBUF":
            descriptors = protobuf_values.compiled(schema.text, where)
            made = ProtobufDecoder(descriptors, self._message, where, indexes=indexes)
        else:
            raise OptionError(f"{where} is of a kind that is not known: {schema.kind}")
        self._decoders[number, indexes] = made
        return made


def _in_order(parts: list[tuple[list[int], pa.StructArray]], columns: pa.Schema, count: int) -> pa.StructArray:
    kind = pa.struct(list(columns))
    whole = pa.concat_arrays([*(widened(part, columns) for _, part in parts), pa.nulls(1, kind)])
    null = len(whole) - 1
    places = [null] * count
    for at, row in enumerate(row for rows, _ in parts for row in rows):
        places[row] = at
    return whole.take(pa.array(places, pa.int64()))


def _indexes(head: bytes) -> tuple[tuple[int, ...], int]:
    """Protobuf's message indexes behind the id, and where the message begins. A single 0: the first message."""
    count, at = _varint(head, _PREFIX)
    found = []
    for _ in range(count):
        index, at = _varint(head, at)
        found.append(index)
    return tuple(found) or (0,), at


def _varint(head: bytes, at: int) -> tuple[int, int]:
    """A zigzag number, and what comes behind it; 0 where the bytes end."""
    value = shift = 0
    while at < len(head):
        value |= (head[at] & 0x7F) << shift
        at += 1
        if head[at - 1] < 0x80:
            break
        shift += 7
    return max(0, (value >> 1) ^ -(value & 1)), at
