"""Columns as a decoder gives them, in those that a table has: never another time, date or number."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from tests.harness.typed_values import split
from tests.lakehouse.decoders.test_avro_values import written

from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.kinds import TIME
from headrace.lakehouse.decoders.refit import refitted

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
DAY = date(2026, 1, 2)
NUMBERS = "a whole number {} does not fit a column of {}"


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


@pytest.mark.parametrize(
    "kind",
    ["long", {"type": "long", "logicalType": "timestamp-nanos"}, {"type": "long", "logicalType": "local"}, "int"],
)
def test_numbers_of_a_later_schema_are_no_times(tmp_path: Path, kind: Any) -> None:
    count = 1_700_000_000_000 if kind != "int" else 1_700_000_000
    schemas = [record(("t", {"type": "long", "logicalType": "timestamp-millis"})), record(("t", kind))]
    values = []
    for number, schema in enumerate(schemas, 1):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
        values.append(
            b"\0" + number.to_bytes(4, "big") + written({"t": count}, fastavro.parse_schema(record(("t", "long"))))
        )
    found = split(Decoding.of("confluent", registry=str(tmp_path)), values)
    assert found.table == {0: {"t": datetime.fromtimestamp(count / 1000, UTC)}}
    assert NUMBERS.format(count, "timestamp[us, tz=UTC]") in found.dead[1]


WRAPPED = [
    (lambda kind: kind, lambda value: value),
    (pa.list_, lambda value: [value]),
    (lambda kind: pa.struct([("in", kind)]), lambda value: {"in": value}),
    (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)]),
    (lambda kind: pa.map_(kind, pa.string()), lambda value: [(value, "v")]),
    (lambda kind: pa.list_(pa.struct([("in", kind)])), lambda value: [{"in": value}]),
]


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize(
    ("found", "known", "value", "why"),
    [
        (pa.int64(), TIME, 5, "a whole number 5 does not fit"),
        (pa.int32(), TIME, 5, "a whole number 5 does not fit"),
        (pa.int64(), pa.date32(), 5, "a whole number 5 does not fit"),
        (pa.float64(), TIME, 5.0, "a fraction 5.0 does not fit"),
        (TIME, pa.date32(), NOON, "a time does not fit a column of date32"),
        (pa.date32(), TIME, DAY, "a date does not fit a column of timestamp"),
        (TIME, pa.int64(), NOON, "a time does not fit a column of int64"),
        (pa.date32(), pa.int64(), DAY, "a date does not fit a column of int64"),
        (pa.int64(), pa.timestamp("us"), 5, ""),
        (pa.int64(), pa.time64("us"), 5, ""),
        (pa.int64(), pa.duration("us"), 5, ""),
    ],
)
def test_only_the_rows_with_a_value_of_another_type_are_refused(
    wrap: tuple[Any, Any], found: pa.DataType, known: pa.DataType, value: Any, why: str
) -> None:
    of, around = wrap
    rows = pa.array([{"c": None}, {"c": around(value)}], pa.struct([("c", of(found))]))
    faults: Faults = {}
    made = refitted(rows, pa.schema([("c", of(known))]), faults)
    assert list(faults) == [1]
    assert faults[1].startswith(f"column 'c' of the table is {of(known)}, the value's is {of(found)}")
    assert why in faults[1]
    assert made.field(0).null_count >= 1


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize(("kind", "value"), [(TIME, NOON), (pa.date32(), DAY)])
def test_times_and_dates_fit_their_own(wrap: tuple[Any, Any], kind: pa.DataType, value: Any) -> None:
    of, around = wrap
    inner = of(kind)
    rows = pa.array(
        [{"c": {"t": around(value), "new": None}}], pa.struct([("c", pa.struct([("t", inner), ("new", inner)]))])
    )
    faults: Faults = {}
    made = refitted(rows, pa.schema([("c", pa.struct([("t", inner)]))]), faults)
    assert faults == {}
    assert made.field(0).to_pylist() == [{"t": around(value)}]
