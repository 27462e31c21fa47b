"""Each row of a batch is in exactly one partition, the one of its values, whatever these are."""

import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.errors import TableError
from headrace.spark.sink.partition_values import check_types, folder, split

FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, struct.unpack("<d", b"\x01" + b"\xff" * 7)[0]])
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): FLOATS,
    pa.float32(): st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
    pa.decimal128(38, 4): st.decimals(0, 10**30, places=4),
    pa.timestamp("us", "UTC"): st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.timestamp("us"): st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    pa.date32(): st.integers(-719_162, 2_932_896),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    count = draw(st.integers(1, 30))
    columns = {"row": pa.array(range(count))}
    for place, kind in enumerate(kinds):
        # A few values each, so that partitions have several rows.
        values = draw(st.lists(st.none() | KINDS[kind], min_size=1, max_size=4))
        chosen = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        columns[f"p{place}"] = pa.array(chosen, kind)
    return pa.RecordBatch.from_pydict(columns)


def same(one: pa.Scalar, other: pa.Scalar) -> bool:
    if pa.types.is_floating(one.type) and one.is_valid and other.is_valid:
        here, there = one.as_py(), other.as_py()
        return (math.isnan(here) and math.isnan(there)) or struct.pack("d", here) == struct.pack("d", there)
    return bool(one.equals(other))


@given(batches())
def test_each_row_is_in_the_partition_of_its_values(rows: pa.RecordBatch) -> None:
    names = rows.schema.names[1:]
    seen: list[int] = []
    partitions = set()
    for partition, part in split(rows, names):
        assert partition not in partitions, "a partition comes once"
        partitions.add(partition)
        numbers = part.column("row").to_pylist()
        assert numbers == sorted(numbers)
        seen += numbers
        for name, text in partition:
            column = part.column(name)
            assert all(same(column[0], value) for value in column)
            assert (text is None) == (not column[0].is_valid)
    assert sorted(seen) == list(range(rows.num_rows))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.float64(), math.nan, "NaN"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.float64(), -0.0, "-0.0"),
        (pa.float32(), 0.1, "0.10000000149011612"),
        (pa.bool_(), True, "true"),
        (pa.int8(), -128, "-128"),
        (pa.decimal128(38, 2), Decimal("1E+20"), "100000000000000000000.00"),
        (pa.decimal128(10, 2), Decimal(-3), "-3.00"),
        (pa.date32(), -719_162, "0001-01-01"),
        (pa.timestamp("us", "UTC"), -1, "1969-12-31T23:59:59.999999Z"),
        (pa.timestamp("us"), 0, "1970-01-01 00:00:00.000000"),
        (pa.string(), "a/b=%\n", "a/b=%\n"),
        (pa.binary(), "é".encode(), "é"),
        (pa.string(), None, None),
    ],
)
def test_values_as_the_log_has_them(kind: pa.DataType, value: Any, text: str | None) -> None:
    rows = pa.RecordBatch.from_pydict({"p": pa.array([value], kind)})
    assert [partition for partition, _ in split(rows, ["p"])] == [(("p", text),)]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.string(), "", "'p' has an empty value, .* Delta reads it as null"),
        (pa.binary(), b"", "an empty value"),
        (pa.binary(), b"\xff\x00", "the bytes ff00, .* hex"),
        (pa.string(), "__HIVE_DEFAULT_PARTITION__", "take it for null"),
        (pa.decimal128(10, 2), Decimal("-0.5"), "-0.50, .* negative fraction"),
        (pa.timestamp("us", "UTC"), 253_402_300_800_000_000, "years 1 to 9999"),
        (pa.timestamp("us"), -62_135_596_800_000_001, "years 1 to 9999"),
        (pa.date32(), 2_932_897, "2932897 days .* years 1 to 9999"),
    ],
)
def test_values_that_no_reader_would_find_again(kind: pa.DataType, value: Any, message: str) -> None:
    rows = pa.RecordBatch.from_pydict({"p": pa.array([value], kind)})
    with pytest.raises(TableError, match=message):
        list(split(rows, ["p"]))


def test_folders() -> None:
    assert folder((("a b", "x/y=z%"), ("c", None))) == "a%20b=x%2Fy%3Dz%25/c=__HIVE_DEFAULT_PARTITION__"
    assert folder((("a", "x" * 253),)) == "a=" + "x" * 253
    assert folder((("a", "x" * 254),)) == ""
    assert folder(tuple((f"a{number}", "x" * 200) for number in range(4))) == ""


def test_nested_columns_are_no_partitions() -> None:
    with pytest.raises(TableError, match="'p', which is list"):
        check_types(pa.schema([("p", pa.list_(pa.int64()))]), ["p"])
