"""Values that are JSON objects, read by pyarrow a batch at a time; one with a bad value is halved until it is found."""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.client.errors import OptionError
from headrace.lakehouse.write.columns import ODD as _ODD
from headrace.lakehouse.write.columns import Decoded, column_name, first_line, grown, widened

_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_TIME: Final = pa.timestamp("us", tz="UTC")


def parse(text: str, where: str) -> pa.Schema:
    """The columns that a JSON Schema describes. Raises OptionError."""
    try:
        described = json.loads(text)
        kind = _arrow(described)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise OptionError(f"{where} is not a JSON Schema that columns can be made of: {error}") from None
    if not pa.types.is_struct(kind):
        raise OptionError(f"{where} describes no object: columns come from its properties")
    return pa.schema(list(kind))


def _arrow(described: dict[str, Any]) -> pa.DataType:
    kind = described.get("type", "object" if "properties" in described else "string")
    if isinstance(kind, list):
        kind = next(one for one in kind if one != "null")
    if kind == "object":
        return pa.struct([pa.field(name, _arrow(each)) for name, each in described.get("properties", {}).items()])
    if kind == "array":
        return pa.list_(_arrow(described.get("items", {"type": "string"})))
    if kind == "string" and described.get("format") == "date-time":
        return _TIME
    if kind not in _TYPES:
        raise ValueError(f"type {kind!r} is not known")
    return _TYPES[kind]


class JsonDecoder:
    """Decodes JSON objects."""

    def __init__(self, fields: pa.Schema, *, infer: bool = False) -> None:
        """`fields`: those that are known, by their names in JSON; with `infer`, others are found as they come."""
        self._fields = fields
        self._infer = infer

    def decode(self, values: pa.Array) -> Decoded:
        """Values without nulls."""
        reasons: dict[int, str] = {}
        text = values.cast(pa.binary())
        lines = pc.or_(pc.match_substring(text, b"\n"), pc.match_substring(text, b"\r"))
        if pc.any(lines).as_py():
            text = pa.array([_on_one_line(value) for value in text.to_pylist()], pa.binary())
        parts = self._parts(text, 0, reasons)
        columns = self._columns()
        found = [widened(part, columns) for part in parts]
        return Decoded(pa.concat_arrays(found) if found else pa.nulls(0, pa.struct(list(columns))), reasons)

    def _columns(self) -> pa.Schema:
        return pa.schema([pa.field(column_name(one.name), one.type) for one in self._fields])

    def _parts(self, text: pa.Array, first: int, reasons: dict[int, str]) -> list[pa.StructArray]:
        if not len(text):
            return []
        try:
            return [self._read(text)]
        except (pa.ArrowException, ValueError) as error:
            if len(text) == 1:
                reasons[first] = first_line(error)
                return [pa.nulls(1, pa.struct(list(self._columns())))]
        half = len(text) // 2
        return self._parts(text.slice(0, half), first, reasons) + self._parts(text.slice(half), first + half, reasons)

    def _read(self, text: pa.Array) -> pa.StructArray:
        joined = _joined(text)
        table = self._parse(joined)
        if table.num_rows != len(text):
            raise ValueError("the value is not one JSON object")
        if self._infer:
            new = [one for one in table.schema if one.name not in self._fields.names and _settled(one)]
            found = pa.schema([pa.field(one.name, _texts(one.type)) for one in new])
            self._fields = grown(self._fields, found)
            if any(one.type != found.field(one.name).type for one in new):
                table = self._parse(joined)  # what pyarrow took for times is text
        here = [one for one in self._fields if one.name in table.schema.names]
        arrays = [_whole(table.column(one.name)).cast(one.type) for one in here]
        fields = [pa.field(column_name(one.name), one.type) for one in here]
        return (
            pa.StructArray.from_arrays(arrays, fields=fields) if fields else pa.array([{}] * len(text), pa.struct([]))
        )

    def _parse(self, joined: pa.Buffer) -> pa.Table:
        return pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(joined.size + 1, 1 << 10)),
            parse_options=pj.ParseOptions(
                explicit_schema=self._fields if len(self._fields) else None,
                unexpected_field_behavior="infer" if self._infer else "ignore",
            ),
        )


def _joined(text: pa.Array) -> pa.Buffer:
    """The values' bytes with a line end behind each."""
    lines = pa.concat_arrays([pc.binary_join_element_wise(text, b"\n", b"")])
    offsets = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, lines.buffers()[1]], offset=lines.offset)
    start = offsets[0].as_py()
    return lines.buffers()[2].slice(start, offsets[len(lines)].as_py() - start)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _texts(kind: pa.DataType) -> pa.DataType:
    """The type with text in place of times: a schema has to say where a text is a time."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _texts(one.type)) for one in kind])
    return kind


def _settled(one: pa.Field) -> bool:
    """Whether a field that was found can be a column: one that was null throughout has no type yet."""
    return not _ODD.search(one.name) and _has_type(one.type)


def _has_type(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_has_type(one.type) for one in kind)
    if pa.types.is_list(kind):
        return _has_type(kind.value_type)
    return not pa.types.is_null(kind)


def _on_one_line(value: bytes) -> bytes:
    """JSON without line ends; what is not JSON stays, and is found out."""
    try:
        return json.dumps(json.loads(value), ensure_ascii=False).encode()
    except ValueError:
        return value.replace(b"\n", b" ").replace(b"\r", b" ")
