"""Values in Avro's binary encoding, without a container: each is written with one schema, which is known."""

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.typed import avro_schema
from headrace.lakehouse.typed.arrays import Faults, column
from headrace.lakehouse.typed.avro_reader import Value, reader
from headrace.lakehouse.typed.json_values import placed
from headrace.lakehouse.write.columns import Decoded, first_line


class AvroDecoder:
    """Decodes records of one schema."""

    def __init__(self, text: str, where: str, others: Mapping[str, str] | None = None) -> None:
        """Prepare.

        Args:
            text: the schema.
            where: for messages.
            others: schemas that it refers to, by name, those without references first.

        Raises:
            OptionError: a schema that has no columns; names the field.
        """
        try:
            whole = avro_schema.parse(text, others)
            self.kind = avro_schema.kind_of(whole)
            self._read = reader(whole, self.kind)
        except (avro_schema.SchemaError, RecursionError) as error:
            raise OptionError(f"{where} is not an Avro schema that columns can be made of: {error}") from None

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Values without nulls, in columns for a table with those that are `known`."""
        faults: Faults = {}
        found: list[dict[str, Any] | None] = []
        read = self._read
        for row, value in enumerate(values.to_pylist()):
            try:
                record, end = read(Value(value), 0)
                if end != len(value):
                    raise ValueError(f"{len(value) - end} bytes are left over")
                found.append(record)
            except (ValueError, IndexError, struct.error) as error:
                faults[row] = f"not a value of this schema: {_why(error)}"
                found.append(None)
        return Decoded(column(placed(self.kind, known), found, faults), faults)


def _why(error: Exception) -> str:
    return first_line(error) if isinstance(error, ValueError) else "it ends early"
