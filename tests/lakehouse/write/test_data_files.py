"""Statistics in Delta's log hold for every row of the file, whatever the rows are."""

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.lakehouse.write.data_files import Statistics, can_skip

UTC = pa.timestamp("us", "UTC")
YEAR_10000 = 253_402_300_800_000_000


def collected(kind: pa.DataType, *batches: list[Any]) -> tuple[dict[str, Any], str]:
    """The statistics of a file with one column `v`, as JSON and as text."""
    columns = pa.schema([("v", kind)])
    found = Statistics(columns)
    sink = BytesIO()
    with pq.ParquetWriter(sink, columns) as writer:
        for values in batches:
            rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=columns)
            writer.write_batch(rows)
            found.add(rows)
    text = found.json(writer.writer.metadata)
    return json.loads(text, parse_float=Decimal), text


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (pa.int8(), [-128, 3, None], -128, 3),
        (pa.int64(), [-(2**63), 2**63 - 1], -(2**63), 2**63 - 1),
        (pa.bool_(), [True, False], False, True),
        (pa.float32(), [0.1, None], Decimal("0.10000000149011612"), Decimal("0.10000000149011612")),
        (
            pa.decimal128(38, 2),
            [Decimal("-1.5"), Decimal("9" * 36 + ".99")],
            Decimal("-1.50"),
            Decimal("9" * 36 + ".99"),
        ),
        (pa.date32(), [-719162, 2932896], "0001-01-01", "9999-12-31"),
        (UTC, [-1, 1], "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z"),
        (pa.timestamp("us"), [-62135596800000000], "0001-01-01T00:00:00.000", "0001-01-01T00:00:00.000"),
        (pa.string(), ["b", "", "a"], "", "b"),
        (pa.string(), ["a" * 40], "a" * 32, "a" * 32 + "\x7f"),
        (pa.string(), ["é" * 40], "é" * 32, "é" * 32 + "\U0010ffff"),
        (pa.string(), ["\U0010ffff" * 80], "\U0010ffff" * 32, "\U0010ffff" * 80),
        (pa.string(), ["b", "c" * 5000, "a"], "a", "c" * 32 + "\x7f"),
    ],
)
def test_bounds_of_each_type(kind: pa.DataType, values: list[Any], low: Any, high: Any) -> None:
    found, _ = collected(kind, values)
    assert found["numRecords"] == len(values)
    assert (found["minValues"]["v"], found["maxValues"]["v"]) == (low, high)
    assert found["nullCount"]["v"] == values.count(None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.0, float("nan")]),
        (pa.float32(), [float("nan")]),
        (pa.float64(), [1.0, float("inf")]),
        (pa.float64(), [float("-inf"), float("inf")]),
        (UTC, [0, YEAR_10000]),
        (UTC, [YEAR_10000 - 1]),
        (UTC, [-62_135_596_800_000_001]),
        (pa.date32(), [2_932_897]),
    ],
)
def test_a_bound_that_the_log_cannot_hold_leaves_the_number_of_rows(kind: pa.DataType, values: list[Any]) -> None:
    assert collected(kind, values)[1] == f'{{"numRecords":{len(values)}}}'


def test_characters_are_not_escaped() -> None:
    assert '"minValues":{"v":"\U00020000"}' in collected(pa.string(), ["\U00020000"])[1]


def test_columns_without_bounds() -> None:
    assert collected(pa.binary(), [b"a", None])[0] == {
        "numRecords": 2,
        "minValues": {},
        "maxValues": {},
        "nullCount": {"v": 1},
    }
    assert collected(pa.string(), [None, None])[0]["nullCount"] == {"v": 2}
    assert collected(pa.list_(pa.int64()), [[1], None])[0]["nullCount"] == {}


def test_fields_of_structs_and_batches() -> None:
    kind = pa.struct([("a.b", pa.int64()), ("l", pa.list_(pa.int32())), ("s", pa.struct([("t", pa.string())]))])
    first = [{"a.b": 5, "l": [1], "s": {"t": "x"}}, None]
    second = [{"a.b": None, "l": None, "s": None}, {"a.b": -5, "l": [], "s": {"t": "y"}}]
    found, _ = collected(kind, first, second)
    assert found["minValues"] == {"v": {"a.b": -5, "s": {"t": "x"}}}
    assert found["maxValues"] == {"v": {"a.b": 5, "s": {"t": "y"}}}
    assert found["nullCount"] == {"v": {"a.b": 2, "s": {"t": 2}}}


@given(st.lists(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=90), max_size=4)))
def test_bounds_of_texts_hold(batches: list[list[str | None]]) -> None:
    found, _ = collected(pa.string(), *batches)
    texts = [text.encode() for batch in batches for text in batch if text is not None]
    if texts:
        assert found["minValues"]["v"].encode() <= min(texts)
        assert found["maxValues"]["v"].encode() >= max(texts)
        assert max(len(found["minValues"]["v"]), 32) == 32


@given(st.lists(st.integers(-62_135_596_800_000_000, YEAR_10000 - 1000), min_size=1))
def test_bounds_of_times_hold(times: list[int]) -> None:
    found, _ = collected(UTC, times)
    low, high = (pa.scalar(found[edge]["v"]).cast(UTC).value for edge in ("minValues", "maxValues"))
    assert min(times) - 1000 < low <= min(times)
    assert max(times) <= high < max(times) + 1000


def test_columns_that_delta_skips_by() -> None:
    kinds = {"n": pa.int64(), "t": UTC, "b": pa.bool_(), "x": pa.binary(), "l": pa.list_(pa.int8()), "a,b": pa.int64()}
    assert [name for name, kind in kinds.items() if can_skip(pa.field(name, kind))] == ["n", "t"]
