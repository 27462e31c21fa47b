"""JSON objects as columns: exact, or set aside; whatever they are."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.mutation import mutated
from tests.harness.typed_values import NOTHING, same, split

from headrace.lakehouse.decoders import json_values
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.json_values import JsonDecoder, read_plain
from headrace.lakehouse.write.columns import MOST_COLUMNS, Names

JSON = Decoding.of("json")
MIB = 1 << 20

ASIDE = [
    b"",
    b" ",
    b"null",
    b"true",
    b"1",
    b'"text"',
    b"[]",
    b'[{"a": 1}]',
    b'{"a": 1}{"a": 2}',
    b'{"a": 1} {"a": 2}',
    b'{"a": 1}\n{"a": 2}',
    b'{"a": 1}\x00',
    b'{"a": 1',
    b'{"a": 1,}',
    b'{"a": 01}',
    b'{"a": 1.}',
    b'{"a": .5}',
    b'{"a": +1}',
    b'{"a": NaN}',
    b'{"a": -Infinity}',
    b'{"d": Infinity}',
    b'{"d": 1e400}',
    b'{"d": -1e400}',
    b'{"d": 1e-400}',
    b'{"d": 0.1234567890123456789}',
    b'{"d": 9007199254740993}',
    b'{"d": 99999999999999999999.5}',
    b'{"a": 1.5}',
    b'{"a": 9223372036854775808}',
    b'{"a": ' + b"9" * 5_000 + b"}",
    b'{"d": 0.' + b"1" * 5_000 + b"}",
    b'{"a": true}',
    b'{"a": "1"}',
    b'{"a": [1]}',
    b'{"a": {"b": 1}}',
    b'{"s": 1}',
    b'{"s": "\xff"}',
    b'{"s": "\xc3"}',
    b'{"s": "\xed\xa0\x80"}',
    b'{"s": "\\ud800"}',
    b'{"s": "\\udc00"}',
    b'{"s": "\\udc00\\ud800"}',
    b'{"s": "a\x00"}',
    b'{"s": "a\nb"}',
    b'{"\xff": 1}',
    b"\xef\xbb\xbf{}",
    '{"a": 1}'.encode("utf-16"),
    b'{"list": [1, "a"]}',
    b'{"list": 1}',
    b'{"o": {"x": "no number"}}',
    b'{"o": {"new": 1}}',
    b'{"o": [1]}',
    b"{" + b'"a": {' * 1_000 + b"}" * 1_001,
    b'{"a": ' * 20_000 + b"1" + b"}" * 20_000,
    b"[" * MIB,
    b'{"a": ' * (MIB // 6),
    b'{"a": "' + b"\\" * (MIB - 9),
    b'{"a": [' + b"[],{}," * (MIB // 6) + b"1]}",
    b"{" + b",".join(b'"k%06d": 1' % number for number in range(70_000)) + b"}",
    b'{"' + b"n" * (MIB - 10) + b'": 1}',
    b'{"' + b"value_" * (MIB // 6 - 2) + b'": 1}',
]
"""What does not fit a table with the columns of USUAL, or is no JSON object."""
USUAL = {"a": 1, "d": 0.5, "s": "x", "list": [1], "o": {"x": 1, "y": None}, "b": False}
KNOWN = split(JSON, [json.dumps(USUAL).encode()]).columns


@pytest.mark.parametrize("number", range(len(ASIDE)), ids=lambda number: ascii(ASIDE[number][:24].decode("latin-1")))
def test_one_bad_value_is_set_aside_alone(number: int) -> None:
    usual = json.dumps(USUAL).encode()
    values = [usual, ASIDE[number], usual, None, b"{}", usual]
    for known in (KNOWN, NOTHING):
        found = split(JSON, values, known)
        assert set(found.dead) <= {1}
        assert found.table[0] == found.table[2] == found.table[5]
        assert same(found.table[0], USUAL)
        assert found.table[3] == found.table[4] == {}
    assert 1 in split(JSON, values, KNOWN).dead


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'{"n": 12345678901234567890}', {"n": Decimal(12345678901234567890)}),
        (b'{"n": -' + b"9" * 38 + b"}", {"n": Decimal("-" + "9" * 38)}),
        (b'{"n": -0}', {"n": 0}),
        (b'{"n": 0.1}', {"n": 0.1}),
        (b'{"n": 0.10000000000000001}', {"n": 0.1}),
        (b'{"n": 5e-324}', {"n": 5e-324}),
        (b'{"n": 1, "n": 2}', {"n": 2}),
        (b'{"s": "\\u0000\\ud83d\\ude00"}', {"s": "\0\U0001f600"}),
        (b'{"Id": 1, "ID": 2, "id": 3}', {"Id": 1, "ID_3843971d": 2, "id_a56145270": 3}),
        (b'{"a b": 1, "c": {"d e": 2}}', {"a_x0020_b": 1, "c": {"d_x0020_e": 2}}),
        (b'{"offset": 1, "value_offset": 2}', {"value_offset": 1, "value_value_offset": 2}),
        (b' {\n"a": [ ] , "b": {}, "c": null}\r\n', {}),
        (b'{"a": [[1, 2.5], [], null]}', {"a": [[1.0, 2.5], [], None]}),
    ],
)
def test_values_are_exact(value: bytes, wanted: dict[str, Any]) -> None:
    found = split(JSON, [value])
    if "id_a56145270" in wanted:
        assert sorted(found.table[0].values()) == [1, 2, 3]
        return
    assert found.dead == {}
    assert found.table[0] == wanted


def test_the_sign_of_a_zero_stays() -> None:
    assert str(split(JSON, [b'{"n": -0.0}']).table[0]["n"]) == "-0.0"


def test_a_value_that_is_set_aside_makes_no_column() -> None:
    found = split(JSON, [b'{"a": 1, "list": [1, "a"], "b": 1}', b'{"a": 2}'])
    assert (found.columns.names, list(found.dead)) == (["a"], [0])


def test_a_single_odd_value_decides_nothing() -> None:
    values = [b'{"a": "text"}', *(b'{"a": %d}' % number for number in range(5))]
    assert list(split(JSON, values).dead) == [0]
    wide = (1 << 53) + 1
    values = [b'{"a": 0.5}', *(b'{"a": %d}' % (wide + 2 * number) for number in range(5))]
    assert list(split(JSON, values).dead) == [0]


def test_a_table_gets_no_more_columns_than_it_may_have() -> None:
    values = [b"{" + b",".join(b'"k%d_%d": 1' % (row, number) for number in range(300)) + b"}" for row in range(5)]
    found = split(JSON, [*values, b'{"k0_0": 7, "null": null}'])
    assert list(found.dead) == [3, 4]
    assert len(found.columns) == 900 <= MOST_COLUMNS
    assert found.table[5] == {"k0_0": 7}


# Anything


def _object(fields: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in fields) + "}"


_NUMBERS = st.one_of(
    st.integers(-5, 5).map(str),
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.integers(-(10**40), 10**40).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
)
_STRINGS = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(st.characters(codec="utf-8"), max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(['"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"NaN"', '"1e5"', '"{"', '"]"']),
)
_FIELDS = (
    st.sampled_from(["a", "A", "b", "a b", "offset", "value_offset", "", "c", "é", "É"]).map(json.dumps) | _STRINGS
)
_VALUES = st.recursive(
    st.sampled_from(["null", "true", "false"]) | _NUMBERS | _STRINGS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]")
        | st.lists(st.tuples(_FIELDS, inner), max_size=3).map(_object)
    ),
    max_leaves=8,
)


_OBJECTS = st.lists(st.tuples(_FIELDS, _VALUES), max_size=4).map(_object).map(lambda text: text.encode())
_TOKENS = (
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\u",
    b"\\ud800",
    b"1e999",
    b"null",
    b"\n",
    b"\xff",
    b"NaN",
    b"\x00",
)
_ANY = _OBJECTS | mutated(_OBJECTS, _TOKENS) | _VALUES.map(lambda text: text.encode())


def _read(value: bytes) -> dict[str, Any]:
    found = json.loads(value.decode(), parse_float=Decimal)
    assert isinstance(found, dict)
    return found


@settings(max_examples=80, deadline=None, database=None)
@given(st.lists(_ANY | st.none(), max_size=8), st.lists(_ANY | st.none(), max_size=8))
def test_whatever_comes_is_exact_or_set_aside(first: list[bytes | None], second: list[bytes | None]) -> None:
    known = NOTHING
    for values in (first, second, first):
        found = split(JSON, values, known)
        assert found.columns.names[: len(known)] == known.names
        for row, columns in found.table.items():
            value = values[row]
            if value is None:
                assert columns == {}
                continue
            wanted = _read(value)
            names = Names(found.columns.names)
            of_columns = {names.column(name): each for name, each in wanted.items() if len(name) < 100}
            assert all(name in columns or same(None, each) for name, each in of_columns.items()), (value, columns)
            assert all(same(each, of_columns[name]) for name, each in columns.items()), (value, columns)
        known = found.columns


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(_OBJECTS | mutated(_OBJECTS, _TOKENS), min_size=1, max_size=6), st.data())
def test_both_readers_give_the_same(values: list[bytes], data: st.DataObject) -> None:
    known = split(JSON, values).columns
    text = pa.array(data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=6)), pa.binary())
    plain = read_plain(text, known, others=False)
    careful = _without_pyarrow(lambda: JsonDecoder().decode(text, known))
    if plain is not None:
        assert careful.reasons == {}
        for one in careful.columns.type:
            assert careful.columns.field(one.name).equals(plain.field(one.name)), one.name
        others = set(known.names) - {one.name for one in careful.columns.type}
        assert all(plain.field(name).null_count == len(text) for name in others)


def _without_pyarrow(decode: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "read_plain", lambda *_, **__: None)
        return decode()


def test_usual_values_are_read_by_pyarrow() -> None:
    text = pa.array(
        [json.dumps(USUAL | {"o": {}, "a": number, "more": None}).encode() for number in range(100)], pa.binary()
    )
    found = read_plain(text, KNOWN, others=False)
    assert found is not None
    assert found.field("a").to_pylist() == list(range(100))


WIDE = {f"f{place}": 1 for place in range(900)}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("items", [[{}] * 2_000, [None] * 2_000, [1] * 5_000])
def test_a_list_becomes_as_much_as_its_bytes_allow(items: list[Any]) -> None:
    usual = [compact({"items": [WIDE] * 2}), compact({"items": [{"f5": 1}]})]
    known = split(Decoding.of("json"), usual).columns
    bomb = compact({"items": [WIDE, *items]})
    cases = [(bomb, known), (compact({"items": items}), known)]
    for value, columns in cases if items[0] == 1 else [*cases, (bomb, NOTHING)]:
        found = split(Decoding.of("json"), [*usual, value, *usual], columns)
        assert list(found.dead) == [2]
        assert items[0] == 1 or "cells in columns, the most of" in found.dead[2]
        assert found.table[4]["items"][0]["f5"] == 1


def test_a_list_in_a_list_counts(tmp_path: Path) -> None:
    item = {"type": "object", "properties": {f"f{place}": {"type": "integer"} for place in range(900)}}
    lists = {"type": "array", "items": {"type": "array", "items": item}}
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": lists}}}}))
    values = [compact({"a": {"b": [[{}] * 5] * count}}) for count in (2, 200)]
    found = split(Decoding.of(str(path)), values)
    assert list(found.dead) == [1]
    assert "cells in columns, the most of" in found.dead[1]
