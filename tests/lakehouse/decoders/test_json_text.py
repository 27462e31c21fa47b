"""Decoded columns as JSON, with the names of the schema."""

import json
from decimal import Decimal

from tests.lakehouse.decoders.test_avro_values import written

from headrace.lakehouse.decoders.confluent import WireDecoder
from headrace.lakehouse.decoders.json_text import texts
from headrace.lakehouse.decoders.schema_registry import Schema


class One:
    """A registry of one schema."""

    def __init__(self, schema: object) -> None:
        self._schema = Schema("AVRO", json.dumps(schema))

    def schema(self, number: int) -> Schema | None:
        return self._schema if number == 1 else None

    def asks(self, number: int) -> bool:
        return False


def test_names_numbers_bytes_and_maps_are_as_in_the_schema() -> None:
    schema = {
        "type": "record", "name": "All",
        "fields": [
            {"name": "offset", "type": "string"},
            {"name": "key", "type": {"type": "map", "values": ["null", "double"]}},
            {"name": "value", "type": {"type": "array", "items": "bytes"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "next", "type": ["null", "All"]},
        ],
    }  # fmt: skip
    value = {
        "offset": "caf\u00e9", "key": {"a": 0.5, "b": None}, "value": [b"\xff", b"x"],
        "price": Decimal("12345678901234567890.10"), "day": 1, "next": None,
    }  # fmt: skip
    data = b"\0\0\0\0\1" + written(value, schema)
    parts, reasons = WireDecoder(One(schema)).apart([data, b"plain", data[:-1]])
    ((rows, kind, columns),) = parts
    (text, _) = texts(kind, columns)
    assert rows == [0, 2]
    assert set(reasons) == {1, 2}
    assert text == (
        '{"offset": "caf\u00e9", "key": {"a": 0.5, "b": null}, "value": ["\u00ff", "x"], '
        '"price": 12345678901234567890.10, "day": "1970-01-02", "next": null}'
    )
