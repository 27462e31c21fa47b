"""A registry of its own for each module, and requests as clients send them."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from headrace.testing import InProcessServer

TYPE = "application/vnd.schemaregistry.v1+json"


class Api:
    """Requests to one registry."""

    def __init__(self, url: str, login: str = "") -> None:
        self.url = url
        self.login = login

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"content-type": TYPE, **headers}, method=method)
        if self.login:
            request.add_header("authorization", f"Basic {base64.b64encode(self.login.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text, kind, status = answer.read(), answer.headers["content-type"], answer.status
        except urllib.error.HTTPError as error:
            with error:
                text, kind, status = error.read(), error.headers["content-type"], error.code
        assert kind in {TYPE, "text/plain; charset=utf-8"}
        return status, json.loads(text) if kind == TYPE else text.decode()

    def get(self, path: str) -> Any:
        status, told = self.call("GET", path)
        assert status == 200, told
        return told

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        status, told = self.call(method, path, body)
        assert status == 200, told
        return told

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, int]:
        status, told = self.call(method, path, body)
        assert status >= 400, told
        assert told.keys() == {"error_code", "message"}
        assert told["message"]
        return status, told["error_code"]

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return int(self.ok("POST", path, {"schema": text, **more})["id"])


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """An Avro record of fields, each `name` or `(name, default)`."""
    made = [
        {"name": one, "type": "int"} if isinstance(one, str) else {"name": one[0], "type": "int", "default": one[1]}
        for one in fields
    ]
    return {"type": "record", "name": name, "fields": made}


@pytest.fixture(scope="module")
def registry_server() -> Iterator[InProcessServer]:
    with InProcessServer(schema_registry_enable=True, headrace_testing_reset=True) as running:
        yield running


@pytest.fixture
def api(registry_server: InProcessServer) -> Api:
    """The registry, empty."""
    request = urllib.request.Request(f"{registry_server.http}/_headrace/state", method="DELETE")
    with urllib.request.urlopen(request, timeout=60):
        pass
    return Api(f"{registry_server.http}/registry")
