"""Which names an HTTP request may call the server by: the rule, and a server that keeps it everywhere."""

import http.client
import json
from collections.abc import Iterator

import pytest

from headrace.http.hosts import Hosts, Refused
from headrace.oci.api.registry import OPERATIONS
from headrace.testing import InProcessServer

EVIL = "rebound.example.com"


def ask(
    hosts: Hosts, *headers: tuple[bytes, bytes], version: str = "1.1", local: str = "10.1.2.3", method: str = "GET"
) -> Refused | None:
    return hosts.refusal([(b"accept", b"*/*"), *headers], version, local, method)


def host_passes(text: str, hosts: Hosts | None = None) -> bool:
    return ask(hosts or Hosts(["broker.example.org"]), (b"host", text.encode("latin-1"))) is None


@pytest.mark.parametrize(
    "text",
    ["localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.0.0.1:1", "127.1.2.3:80", "[::1]", "[::1]:8080",
     "[0:0:0:0:0:0:0:1]:80", "[::ffff:127.0.0.1]:80", "broker.example.org", "BROKER.example.org.:443", "10.1.2.3:8080",
     "localhost:"],
)  # fmt: skip
def test_loopback_the_listeners_own_names_and_the_address_it_came_to_pass(text: str) -> None:
    assert host_passes(text)


@pytest.mark.parametrize(
    "text",
    [EVIL, f"{EVIL}:8080", "localhost.example.com", "127.0.0.1.example.com", "example.org", "x.broker.example.org",
     "10.1.2.4", "169.254.169.254", "0.0.0.0:8080", "", ":8080", "localhost:8080:1", "user@localhost", "localhost/x",
     "[::2]", "[localhost", "localhost example.com", "localhost,example.com", "\xe4", "x" * 100_000, "2130706433"],
)  # fmt: skip
def test_every_other_name_is_refused_with_a_remedy(text: str) -> None:
    refused = ask(Hosts(["broker.example.org"]), (b"host", text.encode("latin-1")))
    assert refused is not None
    assert (refused.status, refused.code) == (403, "NotAllowed")
    assert "headrace.http.hosts" in refused.message
    assert len(refused.message) < 1500
    assert refused.message.isascii()
    assert refused.message.isprintable()


def test_the_setting_allows_more() -> None:
    hosts = Hosts(allowed=[" Streaming.Example.org ", "192.168.0.7"])
    assert host_passes("streaming.example.org:80", hosts)
    assert host_passes("192.168.0.7", hosts)
    assert not host_passes("other.example.org", hosts)
    assert host_passes("other.example.org", Hosts(allowed=["*"]))
    assert ask(Hosts(allowed=["*"]), (b"host", b"h"), (b"origin", b"null")) is None


@pytest.mark.parametrize("origin", ["http://localhost:8080", "https://127.0.0.1", "HTTP://[::1]:1", "http://10.1.2.3"])
def test_pages_of_this_server_may_ask(origin: str) -> None:
    assert ask(Hosts(), (b"host", b"localhost"), (b"origin", origin.encode())) is None


@pytest.mark.parametrize(
    "origin",
    [f"http://{EVIL}", f"https://{EVIL}:8080", "null", "", "localhost", "file://localhost", "http://",
     f"http://localhost@{EVIL}", f"http://{EVIL}#localhost", "http://" + "x" * 100_000, "chrome-extension://abc"],
)  # fmt: skip
def test_pages_of_others_may_not(origin: str) -> None:
    refused = ask(Hosts(), (b"host", b"localhost"), (b"origin", origin.encode()))
    assert refused is not None
    assert (refused.status, refused.code) == (403, "NotAllowed")


def test_one_host_no_more_and_no_less() -> None:
    twice = ask(Hosts(), (b"host", b"localhost"), (b"host", b"localhost"))
    assert twice is not None
    assert (twice.status, twice.code) == (400, "CannotParseRequest")
    origins = ask(Hosts(), (b"host", b"localhost"), *[(b"origin", b"http://localhost")] * 2)
    assert origins is not None
    assert origins.status == 400
    none = ask(Hosts())
    assert none is not None
    assert none.status == 400
    # HTTP/1.0 has no Host, and no browser speaks it.
    assert ask(Hosts(), version="1.0") is None
    assert ask(Hosts(), (b"host", EVIL.encode()), version="1.0") is not None


OTHER_PORT = (b"origin", b"http://localhost:3000")


@pytest.mark.parametrize(
    ("site", "method", "passes"),
    [(b"same-origin", "POST", True), (b"none", "POST", True), (b"same-site", "GET", True),
     (b"same-site", "POST", False), (b"cross-site", "DELETE", False)],
)  # fmt: skip
def test_a_page_of_another_port_of_this_machine_changes_nothing(site: bytes, method: str, passes: bool) -> None:
    found = ask(Hosts(), (b"host", b"localhost:8080"), OTHER_PORT, (b"sec-fetch-site", site), method=method)
    assert (found is None) == passes
    assert found is None or (found.status == 403 and "localhost:3000" in found.message)


def test_a_page_whose_name_is_allowed_may_change_something() -> None:
    told = [(b"host", b"localhost"), OTHER_PORT, (b"sec-fetch-site", b"cross-site")]
    for allowed in ("localhost", "*"):
        assert ask(Hosts(allowed=[allowed]), *told, method="POST") is None
    assert ask(Hosts(["localhost"]), *told, method="POST") is not None


# A server


@pytest.fixture(scope="module", params=["off", "parse"])
def server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth=request.param) as started:
        yield started


def asked(server: InProcessServer, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        assert answer.headers["opc-request-id"] or "20180418" not in path
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def paths() -> list[tuple[str, str]]:
    told = [
        (each.method, "/20180418" + each.path.replace(":rest", "").format_map(_Any())) for each in OPERATIONS.values()
    ]
    return [*told, ("GET", "/20180418/openapi.json"), ("GET", "/"), ("GET", "/healthz"), ("GET", "/nowhere")]


class _Any(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "x"


def test_no_path_of_the_server_is_answered_under_a_foreign_name(server: InProcessServer) -> None:
    assert len(paths()) > 30
    for method, path in paths():
        for headers in ({"host": f"{EVIL}:80"}, {"origin": f"http://{EVIL}"}, {"origin": "null"}):
            status, body = asked(server, method, path, headers)
            assert (status, json.loads(body)["code"]) == (403, "NotAllowed"), (method, path, headers)


def test_headers_of_proxies_are_ignored() -> None:
    with InProcessServer(oci_auth="off") as server:
        address = server.http.removeprefix("http://")
        forged = {"x-forwarded-host": EVIL, "x-forwarded-proto": "https", "x-forwarded-for": "1.2.3.4"}
        assert asked(server, "GET", "/healthz", forged)[0] == 200
        assert asked(server, "GET", "/healthz", {**forged, "host": EVIL})[0] == 403
        made = {"name": "s", "partitions": 1, "compartmentId": "ocid1.compartment.oc1..x"}
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("POST", "/20180418/streams", json.dumps(made), forged)
        told = json.loads(connection.getresponse().read())
        connection.close()
        assert told["messagesEndpoint"] == server.http
