"""A server without signatures, and HTTP as it is: what SDKs hide is looked at here."""

import base64
import http.client
import itertools
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

COMPARTMENT = "ocid1.compartment.oc1..tests"
BASE = "/20180418"
_numbers = itertools.count()


class Reply(msgspec.Struct, frozen=True):
    """An answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, code and message of a failure, whose body has these and nothing else."""
        assert self.status >= 400, self
        assert self.json.keys() == {"code", "message"}
        assert self.headers["opc-request-id"]
        return self.status, self.json["code"], self.json["message"]

    @property
    def next_cursor(self) -> str:
        return self.headers["opc-next-cursor"]


class Api:
    """Bare HTTP on one kept connection."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=60)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        base: str = BASE,
    ) -> Reply:
        """One request; a body that is not bytes is sent as JSON."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, base + path, content, headers or {})
        answer = self._connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def done(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        """The JSON of a request that must be 200."""
        reply = self.call(method, path, body, headers)
        assert reply.status == 200, reply
        return reply.json

    def close(self) -> None:
        self._connection.close()

    # Data plane

    def put(self, stream: str, *messages: tuple[bytes | None, bytes]) -> Any:
        return self.done("POST", f"/streams/{stream}/messages", details(*messages))

    def cursor(self, stream: str, kind: str = "TRIM_HORIZON", partition: int = 0, **more: Any) -> str:
        asked = {"partition": str(partition), "type": kind, **more}
        return str(self.done("POST", f"/streams/{stream}/cursors", asked)["value"])

    def group_cursor(self, stream: str, group: str, kind: str = "TRIM_HORIZON", **more: Any) -> str:
        asked = {"groupName": group, "type": kind, **more}
        return str(self.done("POST", f"/streams/{stream}/groupCursors", asked)["value"])

    def get(self, stream: str, cursor: str, limit: int | None = None) -> Reply:
        more = "" if limit is None else f"&limit={limit}"
        return self.call("GET", f"/streams/{stream}/messages?cursor={quote(cursor)}{more}")

    def consumer(self, what: str, stream: str, cursor: str) -> Reply:
        """`commit` or `heartbeat`."""
        return self.call("POST", f"/streams/{stream}/{what}?cursor={quote(cursor)}")

    def values(self, stream: str, cursor: str, limit: int | None = None) -> list[bytes]:
        reply = self.get(stream, cursor, limit)
        assert reply.status == 200, reply
        return [base64.b64decode(message["value"]) for message in reply.json]


def details(*messages: tuple[bytes | None, bytes]) -> dict[str, Any]:
    """A PutMessagesDetails."""
    return {
        "messages": [
            {"value": base64.b64encode(value).decode()}
            | ({} if key is None else {"key": base64.b64encode(key).decode()})
            for key, value in messages
        ]
    }


def new_stream(api: Api, partitions: int = 1) -> tuple[str, str]:
    """A stream's OCID and its name."""
    name = f"stream-{next(_numbers)}"
    made = api.done("POST", "/streams", {"name": name, "partitions": partitions, "compartmentId": COMPARTMENT})
    return made["id"], name


@pytest.fixture(scope="session")
def oci_server() -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="off", headrace_http_hosts="streaming.example.org") as server:
        yield server


@pytest.fixture
def clients(server: InProcessServer) -> OciClients:
    """Of the server that the file has as `server`, with a compartment of the test's own."""
    return OciClients(server.http)


@pytest.fixture
def admin(clients: OciClients) -> Any:
    return clients.admin_client()


@pytest.fixture
def api(oci_server: InProcessServer) -> Iterator[Api]:
    made = Api(oci_server.http)
    yield made
    made.close()


@pytest.fixture
def stream(api: Api) -> str:
    """A stream of one partition."""
    return new_stream(api)[0]


@pytest.fixture
def wide(api: Api) -> str:
    """A stream of four partitions."""
    return new_stream(api, 4)[0]
