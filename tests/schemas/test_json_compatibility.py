"""The rules for JSON Schema. A library that compares sets of values confirms what is called compatible."""

import json
from typing import Any

import jsonschema_rs
import pytest

from headrace.schemas import json_schema, json_text
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.json_compatibility import compare, linear_matches
from headrace.schemas.json_schema import CONSTRAINTS

A = {"type": "string"}
OBJECT = {"type": "object", "properties": {"a": A}}
CLOSED = {**OBJECT, "additionalProperties": False}
WITH_B = {"a": A, "b": {"type": "integer"}}


def differences(old: Any, new: Any, steps: Steps | None = None) -> list[str]:
    budget = steps or Steps()
    before, after = (json_schema.parse(json_text.parse(json.dumps(each), budget), (), budget) for each in (old, new))
    return [one.kind for one in compare(before, after, budget, linear_matches)]


COMPATIBLE: list[tuple[Any, Any]] = [
    (A, A), (A, {}), (A, True), (False, A), ({"type": "integer"}, {"type": "number"}),
    (A, {"type": ["string", "null"]}), (A, {"oneOf": [{"type": "null"}, A]}), ({"oneOf": [A]}, A),
    ({"anyOf": [A, {"type": "integer"}]}, {"anyOf": [{"type": "integer"}, A, {"type": "null"}]}),
    ({"allOf": [A, {"maxLength": 3}]}, {"allOf": [A]}), ({"allOf": [A, {"maxLength": 3}]}, {"maxLength": 4}),
    ({"maxLength": 3, "type": "string"}, {"maxLength": 4, "type": "string"}), ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    ({"const": 1}, {"enum": [1, 2]}), ({"enum": ["a"]}, A), ({"type": "integer", "multipleOf": 4}, {"multipleOf": 2}),
    (CLOSED, {**CLOSED, "properties": WITH_B}), ({**OBJECT, "properties": WITH_B}, OBJECT),
    ({**OBJECT, "required": ["a"]}, OBJECT), (OBJECT, {**OBJECT, "properties": {"a": A, "c": {}}}),
    ({**OBJECT, "additionalProperties": A}, {**OBJECT, "additionalProperties": {"type": ["string", "null"]}}),
    ({"type": "object", "patternProperties": {"^x": A}, "additionalProperties": False},
     {"type": "object", "properties": {"x1": A}, "patternProperties": {"^x": A}, "additionalProperties": False}),
    ({"type": "array", "items": A}, {"type": "array"}),
    ({"type": "array", "minItems": 2}, {"type": "array", "minItems": 1}),
    ({"not": A}, {"not": {"type": "string", "maxLength": 2}}),
    ({"$ref": "#/definitions/a", "definitions": {"a": A}}, {"type": "string"}),
]  # fmt: skip

INCOMPATIBLE: list[tuple[Any, Any, str]] = [
    (A, {"type": "integer"}, "TYPE_CHANGED"), ({"type": ["string", "null"]}, A, "TYPE_NARROWED"),
    ({}, A, "TYPE_NARROWED"),
    ({"oneOf": [A, {"type": "null"}]}, A, "TYPE_CHANGED"), (A, {"maxLength": 3}, "MAX_LENGTH_ADDED"),
    ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [A]}, "SUM_TYPE_NARROWED"), (A, False, "TYPE_CHANGED"),
    ({"maxLength": 3}, {"maxLength": 2}, "MAX_LENGTH_DECREASED"), ({"minimum": 3}, {"minimum": 4}, "MINIMUM_INCREASED"),
    (A, {"pattern": "a"}, "PATTERN_ADDED"), ({"enum": ["a", "b"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED"),
    ({"enum": [True]}, {"enum": [1]}, "ENUM_ARRAY_NARROWED"), (A, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED"),
    (OBJECT, {**OBJECT, "properties": WITH_B}, "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"),
    ({**CLOSED, "properties": WITH_B}, CLOSED, "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"),
    (OBJECT, {**OBJECT, "required": ["a"]}, "REQUIRED_ATTRIBUTE_ADDED"),
    (OBJECT, CLOSED, "ADDITIONAL_PROPERTIES_REMOVED"),
    ({"type": "array"}, {"type": "array", "items": A}, "TYPE_NARROWED"),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, "UNIQUE_ITEMS_ADDED"),
    ({"not": {"type": "string", "maxLength": 2}}, {"not": A}, "NOT_TYPE_EXTENDED"),
    ({"type": "object"}, {"type": "object", "propertyNames": {"maxLength": 3}}, "KEYWORD_CHANGED"),
    ({"type": "object"}, {"type": "object", "dependencies": {"a": ["b"]}}, "DEPENDENCY_ARRAY_EXTENDED"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), COMPATIBLE)
def test_compatible_changes(old: Any, new: Any) -> None:
    assert differences(old, new) == []
    after, before = (jsonschema_rs.canonicalize(each, draft=7) for each in (new, old))
    assert after.covers(before) is not jsonschema_rs.canonical.Containment.NO


@pytest.mark.parametrize(("old", "new", "kind"), INCOMPATIBLE)
def test_incompatible_changes_are_named(old: Any, new: Any, kind: str) -> None:
    assert kind in differences(old, new)
    assert differences(old, old) == differences(new, new) == []


@pytest.mark.parametrize("wrong", [None, 5, "x", [], ["x"], {}, {"x": 5}, [{"x": 5}], True])
def test_keywords_of_other_drafts_may_have_any_value(wrong: Any) -> None:
    # Draft 7 does not define these, so its metaschema does not check them; nor does any for what is not a schema.
    own = dict.fromkeys(("dependentRequired", "dependentSchemas", "prefixItems", "unevaluatedItems"), wrong)
    inner = dict.fromkeys(sorted(CONSTRAINTS - {"$ref"}), wrong)
    schema = {
        **own,
        "properties": {"a": {"$ref": "#/elsewhere"}, "b": {"$ref": "#/data"}},
        "elsewhere": inner,
        "data": wrong,
    }
    assert differences(schema, schema) == []
    for name in inner:
        other = {**schema, "elsewhere": {**inner, name: {"other": [5]}}}
        assert isinstance(differences(schema, other) + differences(other, schema), list)


def test_a_required_property_with_a_default_is_compatible_as_at_confluent() -> None:
    new = {**CLOSED, "properties": {"a": A, "b": {"type": "string", "default": ""}}, "required": ["b"]}
    assert differences(CLOSED, new) == []


def test_recursive_schemas_are_compared() -> None:
    def tree(leaf: str) -> dict[str, Any]:
        node = {"type": "object", "properties": {"value": {"type": leaf}, "child": {"$ref": "#/definitions/node"}}}
        return {"definitions": {"node": node}, "$ref": "#/definitions/node"}

    assert differences(tree("string"), tree("string")) == []
    assert differences(tree("string"), tree("integer")) == ["TYPE_CHANGED"]
    assert differences({"$ref": "#"}, {"$ref": "#"}) == []


def test_hostile_schemas_cost_bounded_steps() -> None:
    def doubling(leaf: str) -> dict[str, Any]:
        made: dict[str, Any] = {"d30": {"type": leaf}}
        for place in range(30):
            inner = {"$ref": f"#/definitions/d{place + 1}"}
            made[f"d{place}"] = {"anyOf": [{"allOf": [inner, inner]}, {"not": inner}]}
        return {"definitions": made, "allOf": [{"$ref": "#/definitions/d0"}]}

    with pytest.raises(InvalidSchema, match="too complex"):
        differences(doubling("string"), doubling("integer"))
    many = {"type": "object", "patternProperties": {f"p{place}": {} for place in range(3_000)}}
    names = {"type": "object", "properties": {f"n{place}": A for place in range(3_000)}}
    with pytest.raises(InvalidSchema, match="too complex"):
        differences({**many, **names}, many)


def test_patterns_take_linear_time() -> None:
    assert not linear_matches("^(a+)+$", "a" * 5_000 + "b")
    assert linear_matches("^(a+)+$", "a" * 5_000)
    assert linear_matches("(?<=x)y", "z"), "an unsupported pattern may match"
