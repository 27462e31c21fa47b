import json
import time
from typing import Any

import pytest

from headrace.schemas import json_schema, json_text, metaschema
from headrace.schemas.errors import InvalidSchema, Steps

DRAFTS = list(json_schema.DRAFTS.values())


def violation(schema: Any, draft: str = DRAFTS[2]) -> str:
    with pytest.raises(InvalidSchema) as error:
        metaschema.check(schema, draft, Steps())
    return str(error.value)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "text"}, "/type"),
        ({"maxLength": -1}, "/maxLength"),
        ({"required": ["a", "a"]}, "/required"),
        ({"properties": {"b": {}, "a": {"required": "b"}}}, "/properties/a/required"),
        ({"properties": {"a": 1}}, "/properties/a"),
        ({"properties": []}, "/properties"),
        ({"allOf": []}, "/allOf"),
        ({"allOf": [{}, {"anyOf": [{}, {"not": {"type": 5}}]}]}, "/allOf/1/anyOf/1/not/type"),
        ({"additionalProperties": {"minimum": "x"}}, "/additionalProperties/minimum"),
        ({"exclusiveMaximum": "x", "maximum": 4}, "/exclusiveMaximum"),
    ],
)
def test_the_smallest_part_that_violates_the_metaschema_is_named(schema: Any, place: str, draft: str) -> None:
    assert violation(schema, draft).startswith(f"Invalid JSON Schema at {place}: ")


def test_messages_name_the_value() -> None:
    assert violation({"items": [{}, {"required": "b"}]}).endswith('at /items/1/required: "b" is not of type "array"')
    assert violation({"minimum": 1, "type": 7, "maximum": "m"}).endswith('at /maximum: "m" is not of type "number"')


def test_parts_that_no_draft_examines_are_not_blamed() -> None:
    schema = {"x-note": {"type": 5}, "default": {"type": 5}, "enum": [{"type": 5}], "pattern": 3}
    assert violation(schema).startswith("Invalid JSON Schema at /pattern: ")


@pytest.mark.parametrize("draft", DRAFTS)
def test_alternatives_in_one_another_do_not_multiply_the_message(draft: str) -> None:
    """The library's own message took 27 s of Python's lock for this one."""
    schema: Any = {"type": 1}
    for _ in range(14):
        schema = {"items": [schema, schema]}
    began = time.thread_time()
    assert "/type: " in violation(json.loads(json.dumps(schema)), draft)
    assert time.thread_time() - began < 5


def test_long_values_are_not_in_the_message() -> None:
    assert len(violation({"type": ["x" * 1_000] * 10_000})) < 1_500
    assert len(violation({"properties": {"x" * 100_000: {"type": 5}}})) < 1_500


def test_a_violation_takes_bounded_steps() -> None:
    schema: Any = {"allOf": [True] * 1_000 + [{"type": 1}]}
    with pytest.raises(InvalidSchema, match="too complex"):
        metaschema.check(schema, DRAFTS[2], Steps(500))


def test_valid_schemas_pass() -> None:
    for draft in DRAFTS:
        metaschema.check({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, draft, Steps())
    assert json_text.parse('{"type": "string"}', Steps()) == {"type": "string"}
