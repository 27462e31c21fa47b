"""Logins, ACLs, limits and restarts of the registry."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.schema_registry.conftest import Api, record

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.testing import InProcessServer

ONE = json.dumps(record("a"))


def test_there_is_no_registry_unless_it_is_enabled() -> None:
    with InProcessServer() as server:
        status, _ = _plain(server.http + "/registry/subjects")
        assert status == 404


def _plain(url: str) -> tuple[int, bytes]:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_schemas_survive_a_restart(tmp_path: Path) -> None:
    with InProcessServer(tmp_path / "d", schema_registry_enable=True) as server:
        api = Api(f"{server.http}/registry")
        number = api.register("t", ONE)
        api.register("t", record("a", ("b", 0)))
        api.ok("DELETE", "/subjects/t/versions/2")
        api.ok("DELETE", "/subjects/t/versions/2?permanent=true")
        api.ok("PUT", "/config/t", {"compatibility": "FULL_TRANSITIVE"})
        server.restart()
        assert api.get(f"/schemas/ids/{number}")["schema"]
        assert api.get("/config/t") == {"compatibilityLevel": "FULL_TRANSITIVE"}
        assert api.register("t", record("a", ("c", 0))) == 3, "an ID is never used for another schema"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InProcessServer, Api]]:
    """A server with ACLs; `admin` may do everything, `bob` and `eve` may do what tests grant."""
    keys = tmp_path_factory.mktemp("keys")
    first = tmp_path_factory.mktemp("first") / "user"
    first.write_text("admin:secret")
    with InProcessServer(
        bootstrap_user=first,
        schema_registry_enable=True,
        authorizer_class_name=STANDARD_AUTHORIZER,
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        connection_failed_authentication_delay_ms=1,
        oci_auth="verify",
        oci_auth_keys=keys,
    ) as server:
        yield server, Api(f"{server.http}/registry", "admin:secret")


def test_wrong_passwords_are_refused_in_the_format_of_the_api(guarded: tuple[InProcessServer, Api]) -> None:
    server, _ = guarded
    assert Api(f"{server.http}/registry", "admin:wrong").refused("GET", "/subjects") == (401, 401)


def test_acls_of_the_topic_apply(guarded: tuple[InProcessServer, Api]) -> None:
    server, admin = guarded
    anonymous = Api(f"{server.http}/registry")
    number = admin.register("orders-value", ONE)
    admin.register("hidden", ONE)
    secret = admin.register("hidden", record("a", ("b", 0)))
    assert anonymous.get("/subjects") == []
    for method, path, body in [
        ("POST", "/subjects/orders-value/versions", {"schema": ONE}), ("DELETE", "/subjects/orders-value", None),
        ("GET", "/subjects/orders-value/versions", None), ("PUT", "/config/orders-value", {"compatibility": "FULL"}),
        ("PUT", "/mode", {"mode": "READONLY"}), ("GET", "/config", None),
    ]:  # fmt: skip
        assert anonymous.refused(method, path, body) == (403, 40301)
    assert anonymous.refused("GET", f"/schemas/ids/{number}") == (404, 40403)
    _grant(server, "User:ANONYMOUS", AclOperation.READ, "orders")
    assert anonymous.get("/subjects") == ["orders-value"]
    assert anonymous.get(f"/schemas/ids/{number}/subjects") == ["orders-value"]
    assert anonymous.refused("GET", f"/schemas/ids/{secret}") == (404, 40403)
    assert anonymous.refused("POST", "/subjects/orders-value/versions", {"schema": ONE}) == (403, 40301)
    _grant(server, "User:ANONYMOUS", AclOperation.WRITE, "orders")
    assert anonymous.register("orders-key", ONE) == number
    references = [{"name": "R", "subject": "hidden", "version": 1}]
    listed: dict[str, Any] = {"schema": "[]", "references": references}
    assert anonymous.refused("POST", "/subjects/orders-value/versions", listed) == (403, 40301)
    told = anonymous.call("GET", "/subjects/hidden/versions")[1]["message"]
    assert "User:ANONYMOUS may not Describe Topic hidden" in told


def _grant(server: InProcessServer, principal: str, operation: AclOperation, topic: str) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "admin",
             "sasl.password": "secret"}  # fmt: skip
    admin = AdminClient({"bootstrap.servers": server.kafka, **login})
    acl = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW
    )
    for future in admin.create_acls([acl]).values():
        future.result(60)


def test_the_number_and_size_of_schemas_are_bounded() -> None:
    with InProcessServer(
        schema_registry_enable=True,
        schema_registry_max_schemas=3,
        schema_registry_max_schema_bytes=1_024,
        schema_registry_max_bytes=1_500,
    ) as server:
        api = Api(f"{server.http}/registry")
        api.register("a", ONE)
        large = {"schema": json.dumps({**record("a"), "doc": "x" * 1_000})}
        assert api.refused("POST", "/subjects/b/versions", large) == (422, 42209)
        large["schema"] = json.dumps({**record("a"), "doc": "x" * 900})
        api.ok("POST", "/subjects/b/versions", large)
        other = {"schema": large["schema"].replace("x", "y")}
        assert api.refused("POST", "/subjects/c/versions", other) == (422, 42205)
        api.register("c", ONE)
        assert api.refused("POST", "/subjects/d/versions", {"schema": ONE}) == (422, 42205)
        assert api.register("c", ONE)
        api.ok("DELETE", "/subjects/b")
        api.ok("DELETE", "/subjects/b?permanent=true")
        api.ok("POST", "/subjects/d/versions", other)


def test_concurrent_registrations_get_different_ids_and_versions(api: Api) -> None:
    api.ok("PUT", "/config/t", {"compatibility": "NONE"})
    found: list[Any] = []

    def register(place: int) -> None:
        for each in range(5):
            body = {"schema": json.dumps({"type": "fixed", "name": f"F{place}_{each}", "size": 1})}
            found.append(api.ok("POST", "/subjects/t/versions", body))

    threads = [threading.Thread(target=register, args=(place,)) for place in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert len({one["id"] for one in found}) == 20
    assert sorted(one["version"] for one in found) == list(range(1, 21))


def test_hostile_schemas_do_not_stall_the_server(registry_server: InProcessServer, api: Api) -> None:
    api.ok("PUT", "/config/t", {"compatibility": "FULL_TRANSITIVE"})
    one, other = (
        json.dumps([{"type": "record", "name": f"{letter}{place}", "fields": []} for place in range(15_000)])
        for letter in "AB"
    )
    api.register("t", one)
    done = threading.Event()
    refused: list[tuple[int, int]] = []

    def register() -> None:
        refused.append(api.refused("POST", "/subjects/t/versions", {"schema": other}))
        done.set()

    thread = threading.Thread(target=register)
    thread.start()
    answers = 0
    while not done.is_set():
        began = time.monotonic()
        assert _plain(registry_server.http + "/livez")[0] == 200
        assert time.monotonic() - began < 30
        answers += 1
    thread.join(60)
    assert refused == [(422, 42201)]
    assert answers > 1, "other requests were answered in between"


def test_a_schema_that_violates_its_metaschema_often_does_not_stall_the_server(
    registry_server: InProcessServer, api: Api
) -> None:
    """Its message, with all alternatives, took 27 s of Python's lock."""
    schema: Any = {"type": 1}
    for _ in range(14):
        schema = {"items": [schema, schema]}
    body = {"schema": json.dumps(schema), "schemaType": "JSON"}
    began = time.monotonic()
    assert api.refused("POST", "/subjects/t/versions", body) == (422, 42201)
    assert time.monotonic() - began < 10


def test_long_parts_that_are_not_supported_are_refused_unread(api: Api) -> None:
    numbers = "[" + ",".join(["1.234567890123456789e-300"] * 50_000) + "]"
    for part, code in (("metadata", 42201), ("ruleSet", 42210), ("schemaTagsToAdd", 42201)):
        body = f'{{"schema": {json.dumps(ONE)}, "{part}": {numbers}}}'.encode()
        assert api.refused("POST", "/subjects/t/versions", body) == (422, code)
    body = f'{{"compatibility": "NONE", "defaultRuleSet": {numbers}}}'.encode()
    assert api.refused("PUT", "/config/t", body) == (422, 42205)
    empty = {"schema": ONE, "metadata": {"tags": {}}, "ruleSet": {"domainRules": []}, "schemaTagsToAdd": []}
    assert api.ok("POST", "/subjects/t/versions", empty)["id"]


def test_references_beyond_the_limit_are_refused_before_they_are_looked_up(api: Api) -> None:
    references = [{"name": "a", "subject": "none", "version": 1}] * 201
    status, told = api.call("POST", "/subjects/t/versions", {"schema": ONE, "references": references})
    assert (status, told["error_code"]) == (422, 42201)
    assert told["message"] == "The schema refers to more than 200 schemas"
