"""Routes, answers and error codes, as Confluent documents them."""

import base64
import json
from typing import Any

import pytest
from tests.schema_registry.conftest import Api, record

ONE = json.dumps(record("a"))
TWO = json.dumps(record("a", ("b", 0)))
WRONG = json.dumps(record("a", "b"))


def test_register_look_up_and_read(api: Api) -> None:
    told = api.ok("POST", "/subjects/t-value/versions", {"schema": ONE})
    assert told["version"] == 1
    number, guid = told["id"], told["guid"]
    assert api.register("t-value", json.dumps(record("a"), indent=2)) == number
    assert api.get("/subjects") == ["t-value"]
    assert api.get("/subjects/t-value/versions") == [1]
    whole = {
        "subject": "t-value",
        "version": 1,
        "id": number,
        "guid": guid,
        "schema": json.dumps(record("a"), separators=(",", ":")),
    }
    assert api.get("/subjects/t-value/versions/1") == api.get("/subjects/t-value/versions/latest") == whole
    assert api.ok("POST", "/subjects/t-value", {"schema": ONE}) == whole
    assert api.get("/schemas") == [whole]
    assert api.get(f"/schemas/ids/{number}") == {"schema": whole["schema"], "guid": guid}
    assert api.get(f"/schemas/ids/{number}?fetchMaxId=true")["maxId"] == number
    assert api.get(f"/schemas/guids/{guid}") == {"schema": whole["schema"], "guid": guid}
    assert api.get(f"/schemas/guids/{guid}/ids") == [{"context": ".", "id": number}]
    assert api.get(f"/schemas/ids/{number}/subjects") == ["t-value"]
    assert api.get(f"/schemas/ids/{number}/versions") == [{"subject": "t-value", "version": 1}]
    assert api.get(f"/schemas/ids/{number}/schema") == api.get("/subjects/t-value/versions/1/schema") == whole["schema"]


def test_what_clients_ask_a_server_first(api: Api) -> None:
    assert api.get("") == api.get("/") == {}
    assert api.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
    assert api.get("/contexts") == ["."]
    assert api.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert api.get("/mode") == {"mode": "READWRITE"}
    assert api.get("/v1/metadata/id")["scope"]["clusters"]["kafka-cluster"] == api.get("/v1/metadata/id")["id"]
    assert api.get("/v1/metadata/version")["version"]


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("GET", "/nothing", None, (404, 404)),
        ("PUT", "/subjects", {}, (405, 405)),
        ("GET", "/subjects/none/versions", None, (404, 40401)),
        ("GET", "/subjects/none/versions/1", None, (404, 40401)),
        ("GET", "/subjects/t/versions/9", None, (404, 40402)),
        ("GET", "/subjects/t/versions/x", None, (422, 42202)),
        ("GET", "/subjects/t/versions/9/referencedby", None, (404, 40402)),
        ("GET", "/schemas/ids/999", None, (404, 40403)),
        ("GET", "/schemas/ids/x", None, (404, 404)),
        ("GET", "/schemas/guids/none", None, (404, 40403)),
        ("GET", "/subjects/t/versions/1?format=else", None, (422, 42205)),
        ("POST", "/subjects/none", {"schema": ONE}, (404, 40401)),
        ("POST", "/subjects/t", {"schema": '"long"'}, (404, 40403)),
        ("POST", "/subjects/t/versions", {"schema": WRONG}, (409, 409)),
        ("POST", "/subjects/t/versions", {"schema": "{"}, (422, 42201)),
        ("POST", "/subjects/t/versions", {"schema": ""}, (422, 42201)),
        ("POST", "/subjects/t/versions", {}, (422, 42201)),
        ("POST", "/subjects/t/versions", {"schema": ONE, "schemaType": "XML"}, (422, 42201)),
        ("POST", "/subjects/t/versions", {"schema": '"' + "x" * (1 << 20) + '"'}, (422, 42209)),
        ("POST", "/subjects/t/versions", b"x" * (3 << 20), (413, 42209)),
        ("POST", "/subjects/t/versions", {"schema": 5}, (422, 422)),
        ("POST", "/subjects/t/versions", b"{", (400, 400)),
        ("POST", "/subjects/t/versions", b"\xff", (400, 400)),
        ("POST", "/subjects/t/versions", {"schema": ONE, "id": 5}, (422, 42205)),
        ("POST", "/subjects/t/versions", {"schema": TWO, "version": 7}, (422, 42201)),
        ("POST", "/subjects/t/versions", {"schema": ONE, "ruleSet": {"domainRules": [{}]}}, (422, 42210)),
        ("POST", "/subjects/t/versions", {"schema": ONE, "metadata": {"tags": {"a": ["b"]}}}, (422, 42201)),
        ("POST", "/subjects/t/versions",
         {"schema": ONE, "references": [{"name": "x", "subject": "none", "version": 1}]}, (422, 42201)),
        ("POST", "/subjects/:.ctx:t/versions", {"schema": ONE}, (422, 42208)),
        ("POST", "/subjects/%0A/versions", {"schema": ONE}, (422, 42208)),
        ("POST", "/subjects/__GLOBAL/versions", {"schema": ONE}, (422, 42208)),
        ("POST", "/compatibility/subjects/none/versions/latest", {"schema": ONE}, (404, 40401)),
        ("POST", "/compatibility/subjects/t/versions/9", {"schema": ONE}, (404, 40402)),
        ("GET", "/config/t", None, (404, 40408)),
        ("DELETE", "/config/t", None, (404, 40401)),
        ("PUT", "/config/t", {"compatibility": "SOME"}, (422, 42203)),
        ("PUT", "/config/t", {}, (422, 42203)),
        ("PUT", "/config/t", {"alias": "u"}, (422, 42205)),
        ("GET", "/mode/t", None, (404, 40409)),
        ("DELETE", "/mode/t", None, (404, 40401)),
        ("PUT", "/mode/t", {"mode": "SOME"}, (422, 42204)),
        ("PUT", "/mode/t", {"mode": "IMPORT"}, (422, 42205)),
        ("DELETE", "/subjects/none", None, (404, 40401)),
        ("DELETE", "/subjects/t?permanent=true", None, (404, 40405)),
        ("DELETE", "/subjects/t/versions/1?permanent=true", None, (404, 40407)),
        ("DELETE", "/subjects/t/versions/9", None, (404, 40402)),
    ],
)  # fmt: skip
def test_errors_have_confluents_codes(api: Api, method: str, path: str, body: Any, wanted: tuple[int, int]) -> None:
    api.register("t", ONE)
    assert api.refused(method, path, body) == wanted
    assert api.get("/subjects/t/versions") == [1]


def test_bodies_of_other_types_are_refused(api: Api) -> None:
    status, told = api.call("POST", "/subjects/t/versions", {"schema": ONE}, **{"content-type": "text/plain"})
    assert (status, told["error_code"]) == (415, 415)
    assert api.call("POST", "/subjects/t/versions", {"schema": ONE}, **{"content-type": "application/json"})[0] == 200


def test_deleting_is_soft_and_then_permanent(api: Api) -> None:
    number = api.register("t", ONE)
    api.register("t", TWO)
    api.ok("PUT", "/config/t", {"compatibility": "FULL"})
    assert api.ok("DELETE", "/subjects/t/versions/2") == 2
    assert api.refused("DELETE", "/subjects/t/versions/2") == (404, 40406)
    assert api.get("/subjects/t/versions") == [1]
    assert api.get("/subjects/t/versions?deleted=true") == [1, 2]
    assert api.get("/subjects/t/versions?deletedOnly=true") == [2]
    assert api.refused("GET", "/subjects/t/versions/2") == (404, 40402)
    assert api.get("/subjects/t/versions/2?deleted=true")["deleted"] is True
    assert api.ok("DELETE", "/subjects/t/versions/2?permanent=true") == 2
    assert api.ok("DELETE", "/subjects/t") == [1]
    assert api.refused("DELETE", "/subjects/t") == (404, 40404)
    assert api.get("/subjects") == []
    assert api.get("/subjects?deleted=true") == api.get("/subjects?deletedOnly=true") == ["t"]
    assert api.refused("GET", "/config/t") == (404, 40408), "settings go with their subject"
    assert api.get(f"/schemas/ids/{number}")["schema"], "records with this ID can still be read"
    assert api.refused("POST", "/subjects/t", {"schema": ONE}) == (404, 40401)
    assert api.ok("POST", "/subjects/t?deleted=true", {"schema": ONE})["version"] == 1
    assert api.register("t", ONE) == number
    assert api.get("/subjects/t/versions") == [2]
    api.ok("DELETE", "/subjects/t")
    assert api.ok("DELETE", "/subjects/t?permanent=true") == [1, 2]
    assert api.refused("GET", f"/schemas/ids/{number}") == (404, 40403)


def test_compatibility_levels(api: Api) -> None:
    three = record(("a", 0), ("b", 0), ("c", 0))
    without_a = record(("b", 0), "z")
    api.register("t", ONE)
    for level, schema, accepted in [
        ("BACKWARD", TWO, True), ("BACKWARD", WRONG, False), ("FORWARD", WRONG, True), ("FULL", WRONG, False),
        ("FULL", TWO, True), ("NONE", '"string"', True), ("FORWARD", record(("b", 0)), False),
    ]:  # fmt: skip
        api.ok("PUT", "/config/t", {"compatibility": level})
        text = schema if isinstance(schema, str) else json.dumps(schema)
        told = api.ok("POST", "/compatibility/subjects/t/versions/latest?verbose=true", {"schema": text})
        assert told["is_compatible"] is accepted
        assert bool(told["messages"]) is not accepted
    api.ok("PUT", "/config", {"compatibility": "BACKWARD"})
    assert api.ok("DELETE", "/config/t") == {"compatibilityLevel": "FORWARD"}
    api.register("t", record(("b", 0)))
    # The latest version has b with a default, the first does not have it.
    assert api.ok("POST", "/compatibility/subjects/t/versions", {"schema": json.dumps(record("b"))}) == {
        "is_compatible": True
    }
    api.ok("PUT", "/config/t", {"compatibility": "BACKWARD_TRANSITIVE"})
    body = {"schema": json.dumps(record("b"))}
    assert api.ok("POST", "/compatibility/subjects/t/versions", body) == {"is_compatible": False}
    status, told = api.call("POST", "/subjects/t/versions", body)
    assert status == 409
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in told["message"]
    assert "oldSchemaVersion: 1" in told["message"]
    assert api.register("t", three)
    assert api.refused("POST", "/subjects/t/versions", {"schema": json.dumps(without_a)}) == (409, 409)


def test_references(api: Api) -> None:
    other = {"type": "record", "name": "a.Other", "fields": [{"name": "x", "type": "int"}]}
    api.register("other", other)
    user = {"type": "record", "name": "User", "fields": [{"name": "o", "type": "a.Other"}]}
    references = [{"name": "a.Other", "subject": "other", "version": 1}]
    number = api.register("user", user, references=references)
    assert api.get("/subjects/user/versions/1")["references"] == references
    assert api.get("/subjects/other/versions/1/referencedby") == [number]
    assert api.refused("DELETE", "/subjects/other") == (422, 42206)
    assert api.refused("DELETE", "/subjects/other/versions/1") == (422, 42206)
    assert api.register("user", user, references=[{**references[0], "version": -1}]) == number
    whole = {"$ref": "part.json", "$schema": "http://json-schema.org/draft-07/schema#"}
    api.register("part", '{"type": "string"}', schemaType="JSON")
    api.register("whole", whole, schemaType="JSON", references=[{"name": "part.json", "subject": "part", "version": 1}])
    wrong = {"schema": json.dumps(whole), "schemaType": "JSON", "references": references}
    assert api.refused("POST", "/subjects/wrong/versions", wrong) == (422, 42201)
    api.ok("DELETE", "/subjects/user")
    assert api.ok("DELETE", "/subjects/other") == [1]


def test_protobuf_as_text_and_serialized(api: Api) -> None:
    text = 'syntax = "proto3"; package p; message A { int32 x = 1; }'
    number = api.register("p-value", text, schemaType="PROTOBUF")
    told = api.get(f"/schemas/ids/{number}")
    assert (told["schemaType"], told["schema"]) == ("PROTOBUF", text)
    serialized = api.get(f"/schemas/ids/{number}?format=serialized")["schema"]
    assert b"\x0a\x01A" in base64.b64decode(serialized)
    assert api.register("p-value", serialized, schemaType="PROTOBUF") == number
    assert api.register("q-value", serialized, schemaType="PROTOBUF") == number


def test_normalizing(api: Api) -> None:
    long = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int"}}]}
    one = api.register("t", ONE)
    assert api.register("t", long) != one
    assert api.ok("POST", "/subjects/t/versions?normalize=true", {"schema": json.dumps(long)})["id"] == one
    api.ok("PUT", "/config/u", {"normalize": True})
    assert api.register("u", long) == one


def test_modes(api: Api) -> None:
    api.register("t", ONE)
    assert api.ok("PUT", "/mode", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert api.refused("POST", "/subjects/t/versions", {"schema": TWO}) == (422, 42205)
    assert api.refused("DELETE", "/subjects/t") == (422, 42205)
    assert api.get("/mode/t?defaultToGlobal=true") == {"mode": "READONLY"}
    assert api.ok("DELETE", "/mode") == {"mode": "READONLY"}
    assert api.ok("PUT", "/mode/i", {"mode": "IMPORT"}) == {"mode": "IMPORT"}
    assert api.register("i", TWO, id=100, version=5) == 100
    assert api.get("/subjects/i/versions") == [5]
    assert api.ok("DELETE", "/mode/i") == {"mode": "IMPORT"}
    assert api.register("t", record("a", ("z", 0))) == 101


def test_lists_are_filtered_and_paged(api: Api) -> None:
    for name in ("a/1", "a 2", "b"):
        api.register(name, ONE)
    api.register("b", TWO)
    assert api.get("/subjects") == ["a 2", "a/1", "b"]
    assert api.get("/subjects?subjectPrefix=a") == ["a 2", "a/1"]
    assert api.get("/subjects?offset=1&limit=1") == ["a/1"]
    assert api.get("/subjects/a%2F1/versions") == [1]
    assert [(one["subject"], one["version"]) for one in api.get("/schemas?latestOnly=true")] == [
        ("a 2", 1),
        ("a/1", 1),
        ("b", 2),
    ]
    assert len(api.get("/schemas?subjectPrefix=b")) == 2
    assert len(api.get("/schemas?limit=2")) == 2
