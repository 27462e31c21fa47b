"""Values in Avro's binary encoding, without a container: each is written with one schema, which is known."""

import io
import json
from typing import Any, Final

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.write.columns import Decoded, column_name, first_line, rows

_TYPES: Final = {
    "boolean": pa.bool_(),
    # One type for whole numbers and one for fractions: a schema may widen them later.
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


class AvroDecoder:
    """Decodes records of one schema."""

    def __init__(self, text: str, where: str) -> None:
        """`text` is the schema, `where` is for messages. Raises OptionError for a schema that has no columns."""
        import fastavro  # noqa: PLC0415  # an extra

        try:
            self._schema = fastavro.parse_schema(_plain(json.loads(text)))
            self._read = fastavro.schemaless_reader
            kind = _arrow(json.loads(text), {})
        except Exception as error:  # fastavro has many
            raise OptionError(f"{where} is not an Avro schema that columns can be made of: {error}") from None
        if not pa.types.is_struct(kind):
            raise OptionError(f"{where} is no record: columns come from a record's fields")
        self._names = [one.name for one in kind]
        self.columns = pa.schema([pa.field(column_name(one.name), one.type) for one in kind])

    def decode(self, values: pa.Array) -> Decoded:
        """Values without nulls."""
        reasons: dict[int, str] = {}
        found: list[dict[str, Any] | None] = []
        columns = self.columns.names
        for row, value in enumerate(values.to_pylist()):
            source = io.BytesIO(value)
            try:
                record: Any = self._read(source, self._schema, None)
                left = len(value) - source.tell()
                if left:
                    raise ValueError(f"{left} bytes are left over")
            except Exception as error:  # whatever bytes make a reader say
                reasons[row] = f"not a value of this schema: {first_line(error)}"
                found.append(None)
            else:
                found.append(dict(zip(columns, map(record.get, self._names), strict=True)))
        return rows(found, self.columns, reasons)


def _arrow(schema: Any, named: dict[str, pa.DataType]) -> pa.DataType:  # noqa: PLR0911  # one for each kind
    if isinstance(schema, list):
        kinds = [one for one in schema if one != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a union of {len(kinds)} types has no column")
        return _arrow(kinds[0], named)
    if isinstance(schema, str):
        return named[schema] if schema in named else _TYPES[schema]
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _arrow(kind, named)
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "array":
        return pa.list_(_arrow(schema["items"], named))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(schema["values"], named))
    if kind == "record":
        made = pa.struct([pa.field(one["name"], _arrow(one["type"], named)) for one in schema["fields"]])
    else:
        made = named[kind] if kind in named else _TYPES[kind]
    if "name" in schema:
        named[schema["name"]] = made
    return made


def _plain(schema: Any) -> Any:
    """The schema without logical types that have no column type of their own: their values stay as they are."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {*_LOGICAL, "decimal"}
    return {
        name: _plain(value) if name in {"type", "items", "values", "fields"} else value
        for name, value in schema.items()
        if name != "logicalType" or value in kept
    }
