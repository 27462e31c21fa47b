import json
from typing import Any

import pytest

from headrace.schemas import avro, json_text
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Referenced, Schema


def parse(schema: Any, *referenced: Referenced, steps: Steps | None = None) -> avro.Type:
    budget = steps or Steps()
    return avro.parse(json_text.parse(json.dumps(schema), budget), referenced, budget)


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def test_names_are_resolved_in_their_namespace() -> None:
    found = parse(
        record(
            {"name": "own", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
            {"name": "again", "type": "E"},
            {"name": "itself", "type": ["null", "a.b.R"]},
            namespace="a.b",
        )
    )
    assert found.fields[0].type is found.fields[1].type
    assert found.fields[1].type.name == "a.b.E"
    assert found.fields[2].type.inner[1] is found


def test_references_supply_names() -> None:
    other = Referenced("other", Schema("AVRO", json.dumps(record(name="a.Other"))))
    assert parse(record({"name": "x", "type": "a.Other"}), other).fields[0].type.name == "a.Other"
    with pytest.raises(InvalidSchema, match=r"there is no type 'a.Other'"):
        parse(record({"name": "x", "type": "a.Other"}))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("nothing", "there is no type 'nothing'"),
        (None, "expected a type, found null"),
        (5, "expected a type, found 5"),
        ([], "a union needs at least one type"),
        (["int", "int"], "a union contains a type twice"),
        (["int", ["null", "string"]], "a union contains a union"),
        ({"type": "array"}, "has no 'items'"),
        ({"type": "map", "values": "nothing"}, "at /values: there is no type"),
        (record(name="a b"), "is not a name"),
        (record(name="1a"), "is not a name"),
        ({"type": "record", "name": "R"}, "has no 'fields'"),
        ({"type": "record", "name": "R", "fields": {}}, "not a list"),
        (record({"name": "x", "type": "int"}, {"name": "x", "type": "int"}), "two fields named x"),
        (record({"name": "x-y", "type": "int"}), "is not a name"),
        (record({"name": "x", "type": record()}), "the name R is defined twice"),
        (record({"name": "x", "type": "int", "default": "1"}), "the default of field x"),
        (record({"name": "x", "type": "int", "default": True}), "the default of field x"),
        (record({"name": "x", "type": "int", "default": 1 << 31}), "the default of field x"),
        (record({"name": "x", "type": {"type": "array", "items": "int"}, "default": ["a"]}), "the default of field x"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "none of its symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "the size of fixed F"),
        ({"type": "fixed", "name": "F", "size": True}, "the size of fixed F"),
    ],
)
def test_invalid_schemas_are_refused_with_the_reason(schema: Any, why: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        parse(schema)
    assert why in str(error.value)


@pytest.mark.parametrize(
    "field",
    [
        {"name": "x", "type": ["null", "int"], "default": None},
        {"name": "x", "type": ["int", "null"], "default": None},
        {"name": "x", "type": "double", "default": 1},
        {"name": "x", "type": record({"name": "y", "type": "int", "default": 1}, name="S"), "default": {}},
        {"name": "x", "type": {"type": "map", "values": "string"}, "default": {"a": "b"}},
        {"name": "x", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}, "default": "\u0001"},
        {"name": "x", "type": {"type": "string", "avro.java.string": "String"}, "aliases": ["y"]},
    ],
)
def test_valid_fields_are_accepted(field: dict[str, Any]) -> None:
    assert parse(record(field)).fields[0].name == "x"


def test_hostile_schemas_cost_bounded_steps() -> None:
    with pytest.raises(InvalidSchema, match=r"nested more than|recursion"):
        json_text.parse('{"type":"array","items":' * 200 + '"int"' + "}" * 200, Steps())
    with pytest.raises(InvalidSchema, match="not valid JSON"):
        json_text.parse("[" * json_text.MOST_PUNCTUATION, Steps())
    inner: Any = "int"
    value: Any = "wrong"
    for depth in range(40):
        inner = [record({"name": "x", "type": inner if side else "null"}, name=f"R{depth}_{side}") for side in (1, 0)]
        value = {"x": value}
    with pytest.raises(InvalidSchema):
        parse(record({"name": "top", "type": inner, "default": value}), steps=Steps(10_000))


def test_normalizing_removes_optional_spellings() -> None:
    long = record({"name": "x", "type": {"type": "string"}}, {"name": "y", "type": [{"type": "null"}, "int"]})
    short = record({"name": "x", "type": "string"}, {"name": "y", "type": ["null", "int"]})
    assert avro.normal(long) == short
    assert avro.normal(short) == short
