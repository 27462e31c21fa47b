"""Times of RFC 3339 as microseconds, those that the RFC has and no others; decoded columns as JSON."""

import json
from decimal import Decimal

import pytest
from tests.lakehouse.decoders.test_avro_values import written

from headrace.lakehouse.decoders.arrays import microseconds, row_texts
from headrace.lakehouse.decoders.confluent import WireDecoder
from headrace.lakehouse.decoders.schema_registry import Schema

NOON = 1_767_355_200_000_000
MINUTE = 60_000_000


@pytest.mark.parametrize(
    ("zone", "minutes"),
    [
        ("Z", 0),
        ("z", 0),
        ("+00:00", 0),
        ("-00:00", 0),
        ("+00:59", 59),
        ("-00:59", -59),
        ("+23:59", 1439),
        ("-19:30", -1170),
    ],
)
def test_offsets(zone: str, minutes: int) -> None:
    assert microseconds(f"2026-01-02T12:00:00{zone}") == NOON - minutes * MINUTE


@pytest.mark.parametrize(
    "zone",
    [
        *("+00:60", "+00:99", "-00:60", "+23:60", "+24:00", "-24:00", "+30:00", "+99:99", "+0:00", "+00:0", "+0000"),
        *(
            "+00",
            "",
            "+00:00:00",
            "+00:00Z",
            " Z",
            "\u066000:00",
            "+\u0660\u0660:00",
            "+00:\u0660\u0660",
            "\u221200:00",
        ),
    ],
)
def test_offsets_that_there_are_not(zone: str) -> None:
    with pytest.raises(ValueError, match=r"is no time of RFC 3339"):
        microseconds(f"2026-01-02T12:00:00{zone}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-01-02T24:00:00Z", "is no time of RFC 3339"),
        ("2026-01-02T12:60:00Z", "is no time of RFC 3339"),
        ("2026-01-02T23:59:60Z", "is no time that there is"),
        ("2026-02-30T12:00:00Z", "is no time that there is"),
        ("0000-01-01T00:00:00Z", "is no time that there is"),
    ],
)
def test_times_that_there_are_not(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        microseconds(text)


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
    (text, _) = row_texts(kind, columns)
    assert rows == [0, 2]
    assert set(reasons) == {1, 2}
    assert text == (
        '{"offset": "caf\u00e9", "key": {"a": 0.5, "b": null}, "value": ["\u00ff", "x"], '
        '"price": 12345678901234567890.10, "day": "1970-01-02", "next": null}'
    )
