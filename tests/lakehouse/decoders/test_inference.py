"""New columns from values: what most of a batch are decides, and odd records take no columns from others."""

import json
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.typed_values import NOTHING, split

from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.kinds import TIME
from headrace.lakehouse.decoders.refit import refitted
from headrace.lakehouse.write.columns import MOST_COLUMNS, leaves

JSON = Decoding.of("json")
TWO = pa.schema([("a", pa.int64()), ("b", pa.string())])
USUAL = {"a": 1, "b": "x"}
OBJECT = {"o": {"x": 1}, "z": 1}


def many(count: int, prefix: str = "f") -> dict[str, int]:
    return dict.fromkeys((f"{prefix}{number}" for number in range(count)), 1)


@pytest.mark.parametrize("place", [0, 1, 25])
@pytest.mark.parametrize("known", [NOTHING, TWO])
@pytest.mark.parametrize(
    "odd",
    [
        many(1_000),
        many(5_000),
        {"a": 1} | many(1_000),
        {"n": many(1_000)},
        {"n": [{"in": many(1_000)}]},
        {f"g{group}": many(100) for group in range(11)},
        many(600) | {"n": many(600)},
    ],
)
def test_an_odd_record_takes_no_columns(odd: dict[str, Any], known: pa.Schema, place: int) -> None:
    values = [USUAL] * 50
    values.insert(place, odd)
    found = split(JSON, [json.dumps(value).encode() for value in values], known)
    assert list(found.dead) == [place]
    assert f"the table has {MOST_COLUMNS:,} columns of values, and gets no more" in found.dead[place]
    assert len(found.table) == 50
    assert found.columns.names == ["a", "b"]


@pytest.mark.parametrize("place", [0, 25])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"p": [value]}])
@pytest.mark.parametrize(
    "odd",
    [
        {"o": many(1_001), "z": 1},
        {"o": {"x": 1} | many(999), "z": 1},
        {"o": {"x": 1, "n": 1, "k" * 201: 1}, "z": 1},
        {"o": {"x": 1, "deep": {"in": {"k" * 201: 1}}}, "z": 1},
        {"o": {"x": 1, "same": 1, "SAME": 1, "k" * 300: 1}},
        OBJECT | many(999),
    ],
)
def test_an_odd_object_sets_aside_its_own_record_only(odd: dict[str, Any], wrap: Any, place: int) -> None:
    values = [wrap(OBJECT)] * 50
    values.insert(place, wrap(odd))
    found = split(JSON, [json.dumps(value).encode() for value in values])
    assert list(found.dead) == [place]
    assert all(value == wrap(OBJECT) for value in found.table.values())
    assert leaves(found.columns) == 2


def test_a_full_table_refuses_only_records_with_new_fields() -> None:
    known = pa.schema([(name, pa.int64()) for name in many(MOST_COLUMNS)])
    values = [{"f0": 1}, {"f1": 1, "new": 1}, {"f2": 2, "empty": None}, {"f3": 1, "n": {"e": [], "x": 1}}]
    found = split(JSON, [json.dumps(value).encode() for value in values], known)
    assert sorted(found.dead) == [1, 3]
    assert found.columns == known


def test_of_records_with_as_many_others_the_smallest_gets_its_columns() -> None:
    values = [many(1_000), {"a": 1}]
    found = split(JSON, [json.dumps(value).encode() for value in values])
    assert found.table == {1: {"a": 1}}


def test_records_fit_whole_or_not_at_all() -> None:
    values = [many(400, "a"), many(400, "b"), many(400, "c")]
    found = split(JSON, [json.dumps(value).encode() for value in values])
    assert sorted(found.table) == [0, 1]


def test_empty_fields_of_an_object_are_no_columns() -> None:
    values = [OBJECT, {"o": {"x": 2} | dict.fromkeys(many(5_000), None), "z": 1}]
    found = split(JSON, [json.dumps(value).encode() for value in values])
    assert found.dead == {}
    assert found.table == {0: OBJECT, 1: {"o": {"x": 2}, "z": 1}}


def test_a_column_that_is_too_wide_leaves_room_for_others() -> None:
    wide = pa.struct([(name, pa.int64()) for name in many(1_001)])
    rows = pa.array([{"t": 1, "w": {"f0": 1}}, {"t": 1, "w": None}], pa.struct([("w", wide), ("t", TIME)]))
    faults: Faults = {}
    made = refitted(rows, NOTHING, faults)
    assert (list(faults), made.type.names) == ([0], ["t"])
