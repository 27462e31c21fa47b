import json
from typing import Any

import pytest

from headrace.schemas import json_schema, json_text
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Referenced, Schema


def parse(schema: Any, **imports: Any) -> json_schema.Documents:
    steps = Steps()
    referenced = [Referenced(name, Schema("JSON", json.dumps(one))) for name, one in imports.items()]
    return json_schema.parse(json_text.parse(json.dumps(schema), steps), referenced, steps)


@pytest.mark.parametrize("draft", [*json_schema.DRAFTS, "http://json-schema.org/draft-07/schema#"])
def test_drafts_are_checked_against_their_metaschema(draft: str) -> None:
    parse({"$schema": draft, "type": "string"})
    with pytest.raises(InvalidSchema, match="Invalid JSON Schema at /type"):
        parse({"$schema": draft, "type": "text"})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (5, "expected an object"),
        ([], "expected an object"),
        ({"$schema": "http://elsewhere/schema"}, "supported: http"),
        ({"$schema": 5}, "supported: http"),
        ({"maxLength": -1}, "at /maxLength"),
        ({"properties": {"a": {"required": "b"}}}, "at /properties/a/required"),
        ({"$ref": "#/definitions/none"}, "leads nowhere"),
        ({"$ref": "#none"}, "leads nowhere"),
        ({"$ref": "other.json"}, "there is no schema 'other.json'"),
        ({"$ref": "http://127.0.0.1:1/other.json"}, "there is no schema"),
    ],
)
def test_invalid_schemas_are_refused_with_the_reason(schema: Any, why: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        parse(schema)
    assert why in str(error.value)


def resolved(documents: json_schema.Documents) -> Any:
    return documents.resolved(documents.node).schema


def test_references_are_found_by_name_identity_and_anchor() -> None:
    a = {"type": "string"}
    assert resolved(parse({"$ref": "o.json"}, **{"o.json": a})) == a
    assert resolved(parse({"$ref": "o.json#/definitions/x"}, **{"o.json": {"definitions": {"x": a}}})) == a
    by_id = {"$id": "http://h/o.json", **a}
    assert resolved(parse({"$ref": "http://h/o.json"}, o=by_id)) == by_id
    assert resolved(parse({"$id": "http://h/main.json", "$ref": "o.json"}, o=by_id)) == by_id
    inner = {"$id": "inner.json", **a}
    assert resolved(parse({"$id": "http://h/m.json", "$ref": "inner.json", "$defs": {"i": inner}})) == inner
    draft = "https://json-schema.org/draft/2020-12/schema"
    assert resolved(parse({"$schema": draft, "$ref": "#x", "$defs": {"x": {"$anchor": "x", **a}}})) == {
        "$anchor": "x",
        **a,
    }
    assert resolved(parse({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": a}})) == a


def test_a_reference_next_to_other_keywords_is_a_part_of_the_schema() -> None:
    found = resolved(parse({"$ref": "#/definitions/a", "maxLength": 3, "definitions": {"a": {"type": "string"}}}))
    assert found["allOf"][0] == {"$ref": "#/definitions/a"}
    assert found["allOf"][1]["maxLength"] == 3


def test_data_is_not_searched_for_references() -> None:
    parse({"enum": [{"$ref": "#/none"}], "default": {"$ref": "#/none"}, "examples": [{"$ref": "none.json"}]})
