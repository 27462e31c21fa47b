"""JSON Schema as people write it, and as pydantic does."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.typed_values import split

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.decoder import Decoding

ORDER = {
    "$defs": {
        "Address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "Color": {"enum": ["red", "blue"], "title": "Color", "type": "string"},
        "Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
    },
    "properties": {
        "id": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "ship": {"$ref": "#/$defs/Address"},
        "bill": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}], "default": None},
        "old": {"allOf": [{"$ref": "#/$defs/Address"}], "default": {}},
        "color": {"$ref": "#/$defs/Color"},
        "const": {"const": "order"},
        "price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^\\d+$"}]},
        "ratio": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
        "at": {"format": "date-time", "type": "string"},
        "tags": {"items": {"type": "string"}, "type": "array", "uniqueItems": True},
        "counts": {"additionalProperties": {"type": "integer"}, "type": "object"},
        "any": {"title": "Any"},
        "free": {"type": "object", "additionalProperties": True},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "maxItems": 2},
        "tree": {"$ref": "#/$defs/Tree"},
        "Id": {"type": ["integer", "null"]},
    },
    "required": ["id"],
    "title": "Order",
    "type": "object",
}


def decoding_of(folder: Path, schema: Any) -> Decoding:
    path = folder / "value.json"
    path.write_text(json.dumps(schema))
    return Decoding.of(str(path))


def test_what_pydantic_writes(tmp_path: Path) -> None:
    value: dict[str, Any] = {
        "id": 1,
        "note": None,
        "ship": {"city": "x", "left out": 1},
        "bill": {"city": "y"},
        "old": {"city": "z"},
        "color": "red",
        "const": "order",
        "price": "12",
        "ratio": 1,
        "at": "2026-01-02T03:04:05.5+01:00",
        "tags": ["a"],
        "counts": {"a": 1},
        "any": [1, "two", {"three": 3.5}],
        "free": {},
        "pair": [1, "a"],
        "tree": {"kids": [{"kids": []}]},
        "Id": 2,
        "more": 1,
    }
    values = [json.dumps(value), '{"id": 2, "price": 12.50}', '{"id": 3, "any": 12345678901234567890.12345}']
    found = split(decoding_of(tmp_path, ORDER), [each.encode() for each in values])
    assert found.dead == {}
    row = found.table[0]
    assert row.pop("at").isoformat() == "2026-01-02T02:04:05.500000+00:00"
    assert json.loads(row.pop("any")) == value["any"]
    assert json.loads(row.pop("pair")) == value["pair"]
    assert row.pop("tree") == {"kids": ['{"kids": []}']}
    wanted = {name: each for name, each in value.items() if name in row} | {"ship": {"city": "x"}, "free": "{}"}
    assert row == wanted | {"Id_12156e92": 2, "ratio": 1.0, "price": '"12"'}
    assert found.table[1] == {"id": 2, "price": "12.5"}
    assert found.table[2] == {"id": 3, "any": "12345678901234567890.12345"}


@pytest.mark.parametrize(
    "value",
    [
        b'{"id": "x"}',
        b'{"id": 1.5}',
        b'{"id": 12345678901234567890}',
        b'{"at": 5}',
        b'{"at": "yesterday"}',
        b'{"at": "2026-01-02T03:04:05"}',
        b'{"at": "2026-02-30T03:04:05Z"}',
        b'{"at": "0000-01-01T00:00:00Z"}',
        b'{"at": "9999-12-31T23:59:59-01:00"}',
        b'{"at": "2026-01-02T03:04:05.1234567Z"}',
        b'{"at": "2026-01-02T03:04:60Z"}',
        b'{"ship": []}',
        b'{"counts": {"a": "b"}}',
        b'{"counts": {"a": 1, "b": [2]}}',
        b'{"tags": [1]}',
        b'{"note": 1}',
        b'{"any": ' + b"[" * 200 + b"]" * 200 + b"}",
        b"null",
        b"[]",
    ],
)
def test_records_that_violate_the_schema_are_set_aside(value: bytes, tmp_path: Path) -> None:
    found = split(decoding_of(tmp_path, ORDER), [b'{"id": 1}', value, b'{"id": 2}'])
    assert list(found.dead) == [1]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {"properties": {"b": {"type": "nowhere"}}}}}, "field a.b: type 'nowhere' is not known"),
        ({"properties": {"a": {"$ref": "#/$defs/X"}}}, "field a: '#/$defs/X' leads nowhere"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "field a: there is no schema 'other.json'"),
        ({"$defs": {"X": {"$ref": "#/$defs/X"}}, "$ref": "#/$defs/X"}, "its references lead to one another"),
        (
            {"$defs": {"X": {"allOf": [{"$ref": "#/$defs/X"}, {"$ref": "#/$defs/X"}]}}, "$ref": "#/$defs/X"},
            "its references lead to one another",
        ),
        ({"properties": {"a": 5}}, "field a: 5 is no schema"),
        ({"properties": {"a": {"anyOf": {}}}}, "field a: its anyOf is no list"),
        ({"properties": {"a" * 300: {}}}, "has a name of 300 characters"),
        ({"properties": {f"k{number}": {} for number in range(1_001)}}, "describes 1,001 columns"),
        ({"type": "array"}, "describes no object"),
    ],
)
def test_a_schema_that_cannot_be_used_names_the_field(schema: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as told:
        decoding_of(tmp_path, schema)
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_a_model_that_contains_itself_is_text_from_there(tmp_path: Path) -> None:
    node = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                },
            }
        },
        "$ref": "#/$defs/Node",
    }
    found = split(decoding_of(tmp_path, node), [b'{"v": 1, "next": {"v": 2, "next": null}}'])
    assert found.table[0] == {"v": 1, "next": '{"v": 2, "next": null}'}


INTEGER = {"properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("first", "columns"), [(INTEGER, ["n", "w"]), ({}, ["w"]), ({"type": "object"} | INTEGER, ["n", "w"])]
)
@pytest.mark.parametrize("times", [2, 5])
def test_schemas_that_are_joined_in_one_another_are_joined_once(
    first: Any, columns: list[str], times: int, tmp_path: Path
) -> None:
    schemas = {"d0": first} | {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at - 1}"}] * times} for at in range(1, 31)}
    whole = {"$defs": schemas, "allOf": [{"$ref": "#/$defs/d30"}, {"properties": {"w": {"type": "string"}}}]}
    known = decoding_of(tmp_path, whole).columns(pa.schema([]))
    assert known is not None
    assert known.names == columns


def test_what_contains_itself_through_all_of_is_text_from_there(tmp_path: Path) -> None:
    node = {"allOf": [INTEGER, {"properties": {"next": {"$ref": "#/$defs/Node"}}}]}
    found = split(
        decoding_of(tmp_path, {"$defs": {"Node": node}, "$ref": "#/$defs/Node"}), [b'{"n": 1, "next": {"n": 2}}']
    )
    assert found.table[0] == {"n": 1, "next": '{"n": 2}'}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"big": {"properties": {f"k{at}": {} for at in range(900)}}}}
        | {"properties": {f"f{at}": {"allOf": [{"$ref": "#/$defs/big"}] * 50} for at in range(1_000)}},
        {"$defs": {"a": INTEGER, "long": {"$ref": "#" + "/" * 1_000_000 + "$defs/a"}}}
        | {"properties": {"f": {"anyOf": [{"$ref": "#/$defs/long"}] * 200}}},
    ],
)
def test_steps_through_references_are_bounded(schema: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"field f.*: more than 1,000,000 steps through references and allOf"):
        decoding_of(tmp_path, schema)


def test_a_field_that_may_not_be_there_leaves_the_others_their_columns(tmp_path: Path) -> None:
    described = {
        "properties": {
            "id": {"type": "integer"},
            "never": False,
            "either": {"anyOf": [False, {"type": "integer"}]},
            "list": {"type": "array", "items": False},
        }
    }
    path = tmp_path / "never.json"
    path.write_text(json.dumps(described))
    found = split(Decoding.of(str(path)), [b'{"id": 1, "either": 2, "list": []}', b'{"id": 3, "never": [1]}'])
    assert found.dead == {}
    assert found.table == {0: {"id": 1, "either": 2, "list": []}, 1: {"id": 3, "never": "[1]"}}


def animal(kind: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind}, **properties}}


NUMBER, TEXT = {"type": "number"}, {"type": "string"}
ANIMALS = {
    "Cat": animal("cat", lives={"type": "integer"}, size={"type": "integer"}),
    "Dog": animal("dog", tricks={"items": TEXT, "type": "array"}, size=NUMBER, owner=TEXT),
    "Fish": animal("fish", owner={"type": "object", "properties": {"id": {}}}),
}
REFERENCES = [{"$ref": f"#/$defs/{name}"} for name in ANIMALS]


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": REFERENCES, "discriminator": {"propertyName": "kind"}},
        {"anyOf": [*REFERENCES, {"type": "null"}]},
        {"oneOf": [{"anyOf": REFERENCES[:2]}, REFERENCES[2], False, {"type": "array"}]},
        {"allOf": [{"oneOf": REFERENCES}]},
        {**ANIMALS["Cat"], "oneOf": [*REFERENCES[1:], {"required": ["kind"]}]},
    ],
    ids=["pydantic", "null", "nested", "allOf", "own"],
)
def test_a_value_that_is_one_of_several_objects_has_the_columns_of_all(tmp_path: Path, schema: dict[str, Any]) -> None:
    decoding = decoding_of(tmp_path, {**schema, "$defs": ANIMALS})
    values = [
        {"kind": "cat", "lives": 9, "size": 4},
        {"kind": "dog", "tricks": ["sit"], "size": 0.5, "owner": "x"},
        {"kind": "fish", "owner": {"id": 1}},
        [],
    ]
    found = split(decoding, [json.dumps(one).encode() for one in values])
    assert found.table == {
        0: {"kind": "cat", "lives": 9, "size": 4.0},
        1: {"kind": "dog", "tricks": ["sit"], "size": 0.5, "owner": '"x"'},
        2: {"kind": "fish", "owner": '{"id": 1}'},
    }
    assert list(found.dead) == [3]


def test_several_that_contain_themselves_are_no_object(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="describes no object with properties"):
        decoding_of(tmp_path, {"anyOf": [{"$ref": "#"}, {"oneOf": [{"$ref": "#"}, {"required": ["a"]}]}]})
