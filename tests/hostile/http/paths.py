"""Hostile requests to each path outside of OCI's API: the console's pages and forms, requests of brokers, and others.

`PATHS` has one path for every route; `test_http` collects the routes of a starting server.
"""

import re
import socket
from functools import partial
from urllib.parse import quote

from headrace.http.peers.signature import HEADER as SEAL
from headrace.http.peers.transactions import ENDS, QUESTIONS
from headrace.oci.forwarding.append_router import PATH as APPEND
from tests.hostile.http.attacking import (
    BASE,
    Target,
    answer_of,
    many,
    read_all,
    request,
    send_what_it_takes,
)
from tests.hostile.http.corpus import MIB, case

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH")
PATHS = (
    "/", "/healthz", "/livez", "/readyz", "/metrics", "/_headrace/state", f"{BASE}/openapi.json", "/nowhere",
    "/static", "/static/console.css", "/events", "/login", "/logout",
    "/topics", "/topics/sink", "/topics/sink/records", "/groups", "/groups/nobody", "/pipeline", "/brokers",
    "/topics/sink/produce", "/topics/sink/edit", "/topics/sink/partitions", "/topics/sink/config",
    "/topics/sink/delete", "/new-topic", "/users", "/users/delete", "/acls", "/acls/delete",
    "/quotas", "/quotas/delete", "/transactions", "/transactions/abort",
    APPEND, ENDS, QUESTIONS, f"{BASE}",
)  # fmt: skip
FORMS = (
    "/login", "/logout", "/groups/nobody", "/pipeline", "/new-topic", "/users", "/acls", "/quotas",
    "/transactions/abort", "/topics/sink/produce", "/topics/sink/config",
)  # fmt: skip
_URLENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
_PART = b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n\r\n'


def _requests(path: str, target: Target) -> None:
    for method in METHODS:
        target.ask(method, path + "?" + "a=1&" * 15_000, b"{" * 1000)
        target.ask(method, path, bytes(MIB - 1000))
        target.ask(method, path + "/" * 50_000)
        target.ask(method, path, headers={"range": "bytes=" + "0-1," * 10_000, "accept-encoding": "gzip," * 2000})
        target.ask(method, path, headers={"cookie": "a=b; " * 10_000})


for _each in PATHS:
    # For an existing page it would send events until the client disconnects.
    case(_each, "requests")(partial(_requests, "/events?of=/nowhere" if _each == "/events" else _each))


def _forms(path: str, target: Target) -> None:
    """Forms of another kind, of very many fields, and of one very long one."""
    for kind, body in (
        (_URLENCODED, b"a=1&" * (MIB // 4)),
        (_URLENCODED, b"&" * MIB),
        (_URLENCODED, b"a=" + b"%41" * (MIB // 3)),
        (_URLENCODED, b"name=root&password=" + b"x" * 60_000),
        (_URLENCODED, b"name=" + b"%00" * 20_000 + b"&password=x"),
        (_MULTIPART, _PART * (MIB // len(_PART)) + b"--b--\r\n"),
        (_MULTIPART, _PART[:-2] + bytes(MIB) + b"\r\n--b--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 50_000, b"--" + b"b" * 50_000),
        ("multipart/form-data", b"--" * (MIB // 2)),
    ):
        target.ask("POST", path, body, {"content-type": kind, "cookie": "headrace-csrf=" + "x" * 3_000})


def _slow_bodies(path: str, target: Target) -> None:
    """Forty clients that send a byte now and then, and never all of what they have announced."""
    with many(target, 40) as connections:
        head = request("POST", path, b"", {"content-length": str(MIB), "content-type": _URLENCODED})
        for connection in connections:
            send_what_it_takes(connection, head)
        for _ in range(20):
            for connection in connections:
                send_what_it_takes(connection, b"a")
        target.survives("GET", f"{BASE}/nothing")


for _each in FORMS:
    case(_each, "forms")(partial(_forms, _each))
for _each in (*FORMS, APPEND, ENDS, "/healthz", f"{BASE}/streams"):
    case(_each, "slow_bodies")(partial(_slow_bodies, _each))


@case("/metrics")
def many_at_once(target: Target) -> None:
    with many(target, 50) as connections:
        for connection in connections:
            connection.sendall(request("GET", "/metrics") * 10)
        target.survives("GET", f"{BASE}/nothing")
        for connection in connections[:3]:
            assert connection.recv(100).startswith(b"HTTP/1.1 ")


@case(f"{BASE}/openapi.json")
def descriptions_that_nobody_reads(target: Target) -> None:
    with many(target, 100) as connections:
        for connection in connections:
            connection.sendall(request("GET", f"{BASE}/openapi.json") * 50)
        target.survives("GET", f"{BASE}/nothing")


@case("/events")
def many_who_listen_and_do_not_read(target: Target) -> None:
    with many(target, 100) as connections:
        for number, connection in enumerate(connections):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request("GET", f"/events?of={quote(f'/topics?q={number}')}"))
        target.survives("GET", f"{BASE}/nothing")


@case("/login")
def passwords_without_end(target: Target) -> None:
    """By forms that this server has made."""
    with target.connect() as connection:
        connection.sendall(request("GET", "/login", headers={"connection": "close"}))
        page = read_all(connection).decode()
    token = re.search(r'name="token" value="([^"]+)"', page)
    if token is None:
        assert target.open, "there are users here"
        return
    [cookie] = re.findall(r"headrace-csrf=([^;]+)", page)
    told = {"content-type": _URLENCODED, "cookie": f"headrace-csrf={cookie}"}
    for number in range(10):
        body = f"token={token[1]}&name=admin-{number}&password={'%C3%A4' * 10_000}".encode()
        assert target.ask("POST", "/login", body, told)[0] in {403, 503}


@case("/topics/sink/records")
def places_that_no_log_has(target: Target) -> None:
    for number in ("-1", "9" * 20, "9" * 5_000, "1e9", "%00", "x" * 10_000):
        for name in ("partition", "offset", "show", "limit", "q", "at"):
            target.ask("GET", f"/topics/sink/records?{name}={number}")


@case("/topics/sink/records", "bombs")
def pages_of_records_that_are_hard_to_read(target: Target) -> None:
    for number in range(len(target.streams)):
        for query in ("from=oldest", "from=oldest&key=zz", "show=0"):
            target.ask("GET", f"/topics/hostile-{number}/records?{query}")


@case("/topics/sink/records", "many bombs")
def many_pages_of_records_that_are_hard_to_read(target: Target) -> None:
    with many(target, 60) as connections:
        for number, connection in enumerate(connections):
            path = f"/topics/hostile-{number % len(target.streams)}/records?from=oldest"
            connection.sendall(request("GET", path, headers={"connection": "close"}))
        for connection in connections:
            read_all(connection)


@case(APPEND)
def seals_that_nobody_has_made(target: Target) -> None:
    """From a client that is no broker, with bodies of the largest announced size of batches."""
    for seal in ("x" * 60_000, "." * 60_000, "AAAA." + "0" * 64, "e30=." + "é" * 100, "W" * 20_000 + "." + "0" * 64):
        told = {SEAL: seal}
        for path in (APPEND, ENDS, f"{APPEND}?cluster=default&topic=hostile-0&id=0&partition=0", f"{BASE}/streams/x"):
            target.ask("POST", path, bytes(MIB - 1000), told)
    with many(target, 40) as connections:
        for connection in connections:
            told = {SEAL: "AAAA." + "0" * 64, "content-length": str(64 * MIB), "connection": "close"}
            send_what_it_takes(connection, request("POST", APPEND, b"", told) + bytes(MIB))
        target.survives("GET", f"{BASE}/nothing")
        for connection in connections[:3]:
            assert answer_of(read_all(connection))[0] in {0, 400, 401, 404, 405}
