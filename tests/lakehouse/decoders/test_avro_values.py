"""Avro's binary encoding as columns; fastavro writes what is right, and says what it is."""

import io
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.mutation import mutated
from tests.harness.typed_values import Split, split

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.decoder import Decoding

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
SCHEMA = {
    "type": "record",
    "name": "Whole",
    "namespace": "ex",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "from", "type": POINT},
        {"name": "to", "type": ["null", "geo.Point"]},
        {"name": "text", "type": {"type": "string", "logicalType": "timestamp-millis"}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "odd", "type": {"type": "int", "logicalType": "no-such-type"}},
        {"name": "either", "type": ["null", "string", "long", "geo.Point"]},
        {"name": "number", "type": ["int", "double", "null"]},
        {"name": "nothing", "type": "null"},
        {"name": "nothings", "type": {"type": "array", "items": "null"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 3}},
        {"name": "bytes", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "wide", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 1}},
        {"name": "list", "type": {"type": "array", "items": {"type": "map", "values": "float"}}},
        {"name": "node", "type": NODE},
        {"name": "ok", "type": "boolean"},
        {"name": "Id", "type": "int"},
        {"name": "offset", "type": "int"},
        {"name": "empty", "type": {"type": "record", "name": "Empty", "fields": []}},
    ],
}
_PARSED = fastavro.parse_schema(json.loads(json.dumps(SCHEMA).replace('"logicalType"', '"ignored"')))
_LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
_INTS = st.integers(-(1 << 31), (1 << 31) - 1)
_POINTS = st.fixed_dictionaries({"x": st.floats(allow_nan=False)})
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
_NODES = st.recursive(
    st.fixed_dictionaries({"v": _INTS, "next": st.none()}),
    lambda inner: st.fixed_dictionaries({"v": _INTS, "next": inner}),
    max_leaves=4,
)
RECORDS = st.fixed_dictionaries(
    {
        "id": _LONGS,
        "from": _POINTS,
        "to": st.none() | _POINTS,
        "text": _TEXTS,
        "uuid": _TEXTS,
        "odd": _INTS,
        "either": st.none() | _TEXTS | _LONGS | _POINTS,
        "number": st.none() | _INTS | st.floats(allow_nan=False),
        "nothing": st.none(),
        "nothings": st.lists(st.none(), max_size=3),
        "kind": st.sampled_from(["A", "B"]),
        "raw": st.binary(min_size=3, max_size=3),
        "bytes": st.binary(max_size=5),
        "at": st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
        "day": st.integers(-719_162, 2_932_896),
        "local": _LONGS,
        "price": st.integers(-(10**9) + 1, 10**9 - 1).map(lambda number: number.to_bytes(5, "big", signed=True)),
        "wide": st.integers(-(10**60) + 1, 10**60 - 1).map(lambda number: number.to_bytes(26, "big", signed=True)),
        "list": st.lists(st.dictionaries(_TEXTS, st.floats(width=32, allow_nan=False), max_size=2), max_size=2),
        "node": _NODES,
        "ok": st.booleans(),
        "Id": _INTS,
        "offset": _INTS,
        "empty": st.just({}),
    }
)


def written(record: dict[str, Any], schema: Any = _PARSED) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, record)
    return sink.getvalue()


def decoding_of(folder: Path, schema: Any) -> Decoding:
    path = folder / "value.avsc"
    path.write_text(json.dumps(schema))
    return Decoding.of(str(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Decoding:
    return decoding_of(tmp_path_factory.mktemp("avro"), SCHEMA)


def check(found: dict[str, Any], record: dict[str, Any]) -> None:
    either = record["either"]
    branch = {str: "string", int: "long", dict: "Point"}.get(type(either))
    wanted = {
        **{name: each for name, each in record.items() if name not in _OTHERWISE},
        "either": None if branch is None else {"string": None, "long": None, "Point": None} | {branch: either},
        "number": None if record["number"] is None else float(record["number"]),
        "price": Decimal(int.from_bytes(record["price"], "big", signed=True)).scaleb(-2),
        "Id_12156e92": record["Id"],
        "value_offset": record["offset"],
        "empty": "{}",
    }
    wanted = {name: each for name, each in wanted.items() if each is not None}
    times = {name: found.pop(name) for name in ("at", "day", "wide", "node")}
    assert found == wanted
    unscaled = int.from_bytes(record["wide"], "big", signed=True)
    assert Decimal(times["wide"]).as_tuple().exponent in {-1, 0}
    assert int(times["wide"].replace(".", "")) == unscaled
    # From where it contains itself it is JSON.
    assert times["node"]["v"] == record["node"]["v"]
    assert json.loads(times["node"]["next"] or "null") == record["node"]["next"]
    assert times["day"].toordinal() - 719_163 == record["day"]
    assert times["at"].timestamp() == pytest.approx(record["at"] / 1e6)
    assert times["at"].microsecond == record["at"] % 1_000_000


_OTHERWISE = {"at", "day", "node", "wide", "Id", "offset", "nothing"}


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(RECORDS, min_size=1, max_size=4))
def test_records_are_exact(whole: Decoding, records: list[dict[str, Any]]) -> None:
    found = split(whole, [written(record) for record in records])
    assert found.dead == {}
    for row, record in enumerate(records):
        check(found.table[row], record)


@settings(max_examples=80, deadline=None, database=None)
@given(RECORDS, st.lists(mutated(RECORDS.map(written)), max_size=6))
def test_anything_is_decoded_or_set_aside(whole: Decoding, usual: dict[str, Any], values: list[bytes]) -> None:
    found = split(whole, [written(usual), *values, written(usual), None])
    assert 0 not in found.dead
    assert len(values) + 1 not in found.dead
    check(found.table[0], usual)
    check(found.table[len(values) + 1], usual)
    assert found.table[len(values) + 2] == {}


def small(folder: Path, *fields: Any) -> Decoding:
    made = [{"name": f"f{place}", "type": one} for place, one in enumerate(fields)]
    return decoding_of(folder, {"type": "record", "name": "r", "fields": made})


LONGEST = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""The number 2^63 - 1."""


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("long", b"", "ends early"),
        ("long", b"\x80", "ends early"),
        ("long", b"\xff" * 11, "more than ten bytes"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("int", b"\x80\x80\x80\x80\x20", "more than 32 bits"),
        ("long", b"\x02\x02", "1 bytes are left over"),
        ("boolean", b"\x02", "a boolean of byte 2"),
        ("double", b"\x00" * 7, "ends early"),
        ("string", LONGEST, "where 0 are left"),
        ("string", b"\x01", "where 0 are left"),
        ("string", b"\x02\xff", "utf-8"),
        ("string", b"\x06\xed\xa0\x80", "utf-8"),
        ("bytes", LONGEST + b"x", "where 1 are left"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, b"\x01", "symbol -1 of an enum"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, b"\x04", "symbol 2 of an enum"),
        (["null", "string"], b"\x01\x02x", "type -1 of a union"),
        (["null", "string"], b"\x04", "type 2 of a union"),
        ({"type": "array", "items": "long"}, LONGEST, "an array of 9,223,372,036,854,775,807 items"),
        ({"type": "array", "items": "null"}, LONGEST + b"\x00", "an array of 9,223,372,036,854,775,807 items"),
        ({"type": "array", "items": {"type": "fixed", "name": "x", "size": 0}}, b"\x80\x80\x80\x01\x00", "an array of"),
        ({"type": "array", "items": {"type": "array", "items": "null"}}, b"\x02" + LONGEST, "an array of"),
        ({"type": "map", "values": "null"}, LONGEST, "a map of"),
        ({"type": "long", "logicalType": "timestamp-millis"}, LONGEST, "outside of the years 1 to 9999"),
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\xff" * 9 + b"\x01", "outside of the years 1 to 9999"),
        ({"type": "int", "logicalType": "date"}, b"\xff\xff\xff\xff\x0f", "outside of the years 1 to 9999"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3},
            b"\x04\x03\xe8",
            "a number of 4 digits does not fit",
        ),
    ],
)
def test_what_is_wrong_is_said(kind: Any, value: bytes, reason: str, tmp_path: Path) -> None:
    found = split(small(tmp_path, kind), [value])
    assert reason in found.dead[0]


def test_a_list_in_a_list_without_end_costs_nothing(tmp_path: Path) -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "kids", "type": {"type": "array", "items": "N"}}]}
    itself = {"type": "record", "name": "A", "fields": [{"name": "a", "type": "A"}, {"name": "b", "type": "A"}]}
    found = split(small(tmp_path, node), [b"\x02" * (1 << 20), b"\x02" * 50 + b"\x00" * 51, b"\x00"])
    assert list(found.dead) == [0]
    assert "deeper than 100 levels" in found.dead[0]
    assert list(split(small(tmp_path, itself), [b""]).dead) == [0]


NULLS = {"type": "record", "name": "Nulls", "fields": [{"name": f"n{place}", "type": "null"} for place in range(10)]}
COUNTED = "cells in columns, the most of"


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        # 300 times 1,000 items that take no bytes.
        (
            {"type": "array", "items": {"type": "array", "items": "null"}},
            b"\xd8\x04" + b"\xd0\x0f\x00" * 300,
            COUNTED,
        ),
        ({"type": "array", "items": {"type": "array", "items": NULLS}}, b"\xd8\x04" + b"\xd0\x0f\x00" * 300, COUNTED),
        ({"type": "map", "values": NULLS}, b"\xa0\x9c\x01" + b"\x02x" * 10_000, COUNTED),
        ({"type": "array", "items": {**NULLS, "fields": []}}, b"\xa0\x9c\x01\x00", COUNTED),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10},
            b"\x80\xea\x30" + b"\x55" * 400_000,
            "10 digits take 5",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 10},
            b"\x80\xea\x30" + b"\xff" + b"\x55" * 399_999,
            "10 digits take 5",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 999_999},
            b"\x80\xea\x30" + b"\x55" * 400_000,
            "10,000 digits take",
        ),
    ],
)
def test_a_value_becomes_as_much_as_its_bytes_allow(kind: Any, value: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in split(small(tmp_path, kind), [value + b"\x00"]).dead[0]


def test_lists_that_become_json_have_one_bound_together(tmp_path: Path) -> None:
    node = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "n", "type": ["null", "N"]}, {"name": "x", "type": {"type": "array", "items": "null"}}],
    }
    one = b"\x00\xd0\x0f\x00"  # 1,000 nulls
    found = split(
        small(tmp_path, {"type": "array", "items": ["null", {"type": "array", "items": node}]}),
        [b"\x02\x02" + b"\x90\x03" + one * 200 + b"\x00\x00"],
    )
    assert "bytes are left" in found.dead[0]


def test_signs_before_a_decimal_are_no_digits(tmp_path: Path) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 3}
    values = [bytes([2 * 50]) + sign * 48 + rest for sign, rest in ((b"\xff", b"\xfc\x19"), (b"\x00", b"\x03\xe7"))]
    found = split(small(tmp_path, kind), [*values, b"\x00", b"\x06\xff\xff\xff"])
    assert [found.table[row]["f0"] for row in range(4)] == [-999, 999, 0, -1]


def test_items_without_bytes_are_kept(tmp_path: Path) -> None:
    found = split(small(tmp_path, {"type": "array", "items": "null"}), [b"\xd0\x0f\x00"])
    assert len(json.loads(json.dumps(found.table[0]["f0"]))) == 1_000


def test_a_schema_of_records_without_bytes_is_read_at_once(tmp_path: Path) -> None:
    kind: Any = {"type": "record", "name": "r0", "fields": []}
    for level in range(1, 60):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{level - 1}"}]
        kind = {"type": "record", "name": f"r{level}", "fields": fields}
    for _ in range(22):  # too deep for columns
        kind = {"type": "array", "items": kind}
    found = split(small(tmp_path, kind), [b"\x02" * 22 + b"\x00" * 22, b"\x02" * 21 + b"\x00" * 22])
    assert COUNTED in found.dead[0]
    assert list(found.table) == [1]


def test_numbers_of_a_union_are_exact(tmp_path: Path) -> None:
    found = split(small(tmp_path, ["long", "double"]), [b"\x00" + LONGEST, b"\x02" + b"\x00" * 7 + b"\x40"])
    assert [found.table[row]["f0"] for row in (0, 1)] == [
        {"long": (1 << 63) - 1, "double": None},
        {"long": None, "double": 2.0},
    ]


def test_not_a_number_is_a_number(tmp_path: Path) -> None:
    found = split(small(tmp_path, "double"), [b"\x00" * 6 + b"\xf8\x7f"])
    assert math.isnan(found.table[0]["f0"])


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "nowhere"}]},
            "field a: type 'nowhere' is not",
        ),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array"}}]},
            "field a: an array without items",
        ),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": {**POINT, "fields": [{"name": "b"}]}}]},
            "field a: a field of geo.Point without a name or a type",
        ),
        ({"type": "record", "name": "r", "fields": []}, "it is no record with fields"),
        ("int", "it is no record with fields"),
    ],
)
def test_a_schema_that_cannot_be_used_names_the_field(schema: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"value\.avsc is not an Avro schema") as told:
        decoding_of(tmp_path, schema)
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_a_schema_with_very_many_columns_is_refused(tmp_path: Path) -> None:
    kind: Any = "int"
    for level in range(30):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"r{level - 1}" if level else "int"}]
        kind = {"type": "record", "name": f"r{level}", "fields": fields}
    with pytest.raises(OptionError, match=r"field .*: a table has at most 1,000 columns"):
        decoding_of(tmp_path, kind)


def test_schemas_do_not_share(tmp_path: Path) -> None:
    decode: Callable[[Any], Split] = lambda kind: split(small(tmp_path, kind), [b"\x02"])  # noqa: E731
    assert decode("int").table == {0: {"f0": 1}}
    assert decode({"type": "enum", "name": "e", "symbols": ["A", "B"]}).table == {0: {"f0": "B"}}
