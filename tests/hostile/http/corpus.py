"""Hostile requests to the HTTP listener: `CORPUS` has cases for every operation of OCI's API; `paths` adds the others.

All of them are up to 1 MiB, but for those that say otherwise. A case is one attack; `test_http` holds what it may cost.
"""

import base64
import contextlib
import http.client
import json
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from headrace.oci import operations
from headrace.oci.api.registry import OPERATIONS, Nothing, Operation
from tests.hostile.http.attacking import (
    BASE,
    COMPARTMENT,
    Target,
    answer_of,
    many,
    read_all,
    request,
    send_what_it_takes,
)

MIB = 1 << 20
HEAD = 60_000
"""Bytes that fit into the head of a request."""
Attack = Callable[[Target], None]
CORPUS: dict[str, dict[str, Attack]] = {}
"""Operation, path or layer -> cases by name."""

operations.load()


def case(place: str, name: str | None = None) -> Callable[[Attack], Attack]:
    """Make a function a case of an operation, a path or a layer."""

    def add(attack: Attack) -> Attack:
        CORPUS.setdefault(place, {})[name or attack.__name__] = attack
        return attack

    return add


# Every operation


def path_of(target: Target, operation: Operation, **given: str) -> str:
    """A path of an operation, with a stream that is there and other resources that are not."""
    filled = {"streamId": target.streams["empty"], "groupName": "g", **given}
    unknown = {"workRequestId": "x", "streamPoolId": "x", "connectHarnessId": "x"}
    return BASE + operation.path.replace(":rest", "").format(**{**unknown, **filled})


def hostile_values() -> Iterator[bytes]:
    """JSON for any field: as large as a request may be, and as what a resource may have in it."""
    yield b"[" * 60_000
    yield b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    yield b'"' + b"x" * 60_000 + b'"'
    yield b"9" * 60_000
    yield b"{" + b",".join(b'"k%d":"v"' % number for number in range(5_000)) + b"}"
    yield b'{"n":{' + b",".join(b'"k%d":[]' % number for number in range(5_000)) + b"}}"
    yield b"[" + b",".join([b"{}"] * 20_000) + b"]"
    yield b"[" * (MIB // 2)
    yield b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    yield b"[" * 900 + b"]" * 900
    yield b'"' + b"x" * (MIB - 1000) + b'"'
    yield b'"' + b"\\u0041" * 150_000 + b'"'
    yield b'"' + b"\xff" * 1000 + b'"'
    yield b"9" * 500_000
    yield b"1e" + b"9" * 500_000
    yield b'{"' + b"k" * (MIB - 1000) + b'":"v"}'
    yield b"{" + b",".join(b'"k%d":"v"' % number for number in range(60_000)) + b"}"
    yield b'{"n":{' + b",".join(b'"k%d":[]' % number for number in range(60_000)) + b"}}"
    yield b"[" + b",".join([b"{}"] * 300_000) + b"]"


def _fields(kind: Any) -> list[str]:
    return [each.encode_name for each in msgspec.structs.fields(kind)]


def bodies(operation: Operation, target: Target) -> None:
    """Hostile values as a body, and in each of its fields."""
    path = path_of(target, operation)
    for value in hostile_values():
        target.survives(operation.method, path, value)
    usual = {"name": '"hostile"', "compartmentId": f'"{COMPARTMENT}"', "partitions": "1", "type": '"LATEST"'}
    usual = {name: text for name, text in usual.items() if name in _fields(operation.body)}
    for field in _fields(operation.body):
        others = "".join(f'"{name}":{text},' for name, text in usual.items() if name != field)
        for value in hostile_values():
            target.survives(operation.method, path, f'{{{others}"{field}":'.encode() + value + b"}")
    target.survives(operation.method, path, b'{"x":1,' * 1 + b'"x":1,' * 150_000 + b'"x":1}')


def queries(operation: Operation, target: Target) -> None:
    """Hostile values of every query parameter."""
    path = path_of(target, operation)
    deep = base64.urlsafe_b64encode(b"[" * 700).decode().rstrip("=")
    texts = ["9" * HEAD, "-" * HEAD, "%00" * 1000, "%ff" * 1000, "A" * 1024, deep, "%20" * 20_000, "a%26" * 10_000]
    for field in _fields(operation.query):
        others = "".join(f"{name}=x&" for name in ("compartmentId", "cursor") if name != field)
        for text in texts:
            target.survives(operation.method, f"{path}?{others}{field}={text}")
    target.survives(operation.method, f"{path}?{'a=1&' * 15_000}")
    target.survives(operation.method, f"{path}?{'&' * HEAD}")


def paths(operation: Operation, target: Target) -> None:
    """Hostile parameters in the path."""
    for text in ("x" * HEAD, "%2F" * 20_000, "ocid1.stream.oc1.local." + "a" * 5000, "%ff" * 80, "ocid1." * 40):
        given = dict.fromkeys(("streamId", "groupName"), text)
        path = operation.path.replace(":rest", "")
        for name in ("streamId", "workRequestId", "streamPoolId", "connectHarnessId", "groupName"):
            path = path.replace(f"{{{name}}}", text[:30_000] if "groupName" in path else given.get(name, text))
        target.survives(operation.method, BASE + path, b"{}")


for _operation in OPERATIONS.values():
    case(_operation.name, "paths")(partial(paths, _operation))
    if _operation.body is not None:
        case(_operation.name, "bodies")(partial(bodies, _operation))
    if _operation.query is not Nothing:
        case(_operation.name, "queries")(partial(queries, _operation))


# Messages


def _get(target: Target, stream: str, cursor: str, more: str = "") -> tuple[int, bytes]:
    return target.ask("GET", f"{BASE}/streams/{target.streams[stream]}/messages?cursor={quote(cursor)}{more}")


def _read(stream: str, target: Target) -> None:
    if target.open:
        status, body = _get(target, stream, target.cursors[stream])
        assert status == 200, body[:300]
        assert len(body) < 32 * MIB


def _read_in_a_group(stream: str, target: Target) -> None:
    if target.open:
        details = {"groupName": "hostile", "type": "TRIM_HORIZON", "instanceName": "i", "commitOnGet": False}
        cursor = target.done("POST", f"/streams/{target.streams[stream]}/groupCursors", details)["value"]
        status, body = _get(target, stream, cursor)
        assert status == 200, body[:300]


def _by_time(stream: str, target: Target) -> None:
    if target.open:
        for time in ("1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.002Z"):
            asked = json.dumps({"partition": "0", "type": "AT_TIME", "time": time}).encode()
            # Records that cannot be read are said to be so.
            target.survives("POST", f"{BASE}/streams/{target.streams[stream]}/cursors", asked)


BOMBS = ("one large value", "zeros", "many records", "headers", "40 MB of gzip")
for _stream in BOMBS:
    case("GetMessages", _stream)(partial(_read, _stream))
    case("CreateGroupCursor", _stream)(partial(_read_in_a_group, _stream))
    case("CreateCursor", _stream)(partial(_by_time, _stream))


@case("GetMessages")
def the_end_of_many_records(target: Target) -> None:
    if target.open:
        status, body = _get(target, "many records", target.cursors["the end of many records"], "&limit=1")
        assert status == 200
        assert len(json.loads(body)) == 1


@case("GetMessages")
def many_at_once_of_a_batch_that_opens_to_much(target: Target) -> None:
    with many(target, 20) as connections:
        for place, connection in enumerate(connections):
            stream = BOMBS[place % len(BOMBS)]
            path = f"{BASE}/streams/{target.streams[stream]}/messages?cursor={quote(target.cursors.get(stream, 'x'))}"
            connection.sendall(request("GET", path, headers={"connection": "close"}))
        for connection in connections:
            read_all(connection)


@case("GetMessages")
def answers_that_nobody_reads(target: Target) -> None:
    path = f"{BASE}/streams/{target.streams['full']}/messages?cursor={quote(target.cursors.get('full', 'x'))}"
    with many(target, 100) as connections:
        for connection in connections:
            connection.sendall(request("GET", path) * 20)
        # What is sent last is answered by a server that has looked at all of them.
        target.survives("GET", f"{BASE}/nothing")
        for connection in connections[:3]:
            assert connection.recv(100).startswith(b"HTTP/1.1 ")


@case("GetMessages")
@case("ConsumerCommit")
@case("ConsumerHeartbeat")
def cursors_of_all_sorts(target: Target) -> None:
    good = target.cursors.get("empty", "A" * 100)
    made = [
        good[:-1],
        good + "A",
        good * 5,
        "=" * 1024,
        "A" * 1024,
        "_" * 1024,
        base64.urlsafe_b64encode(b"\xdf" * 700).decode(),
    ]
    for cursor in made:
        for method, what in (("GET", "messages"), ("POST", "commit"), ("POST", "heartbeat")):
            path = f"{BASE}/streams/{target.streams['empty']}/{what}?cursor={quote(cursor)}"
            assert target.ask(method, path)[0] in {400, 401}


def _put(target: Target, body: bytes, stream: str = "sink") -> tuple[int, bytes]:
    return target.ask("POST", f"{BASE}/streams/{target.streams[stream]}/messages", body)


def messages(count: int, one: bytes = b'{"value":"AA=="}') -> bytes:
    """A body of so many messages."""
    return b'{"messages":[' + b",".join([one] * count) + b"]}"


@case("PutMessages")
def as_many_as_fit_into_a_mebibyte(target: Target) -> None:
    _put(target, messages(60_000))


@case("PutMessages")
def as_many_in_another_form(target: Target) -> None:
    _put(target, messages(40_000, b'{ "key":null, "value":"AA\\u003d=" }'))


@case("PutMessages")
def a_million_of_one_byte(target: Target) -> None:
    """17 MiB: the limit counts decoded bytes."""
    _put(target, messages(MIB))


@case("PutMessages")
def half_a_million_in_another_form(target: Target) -> None:
    """15 MiB."""
    _put(target, messages(MIB // 2, b'{"value":"AA\\u003d=","x":1}'))


@case("PutMessages")
def more_than_it_says(target: Target) -> None:
    for value in (b"A" * (MIB - 100), b"=" * MIB, b"A" * 1001, b"\\u0041" * 150_000, b"!" * MIB):
        _put(target, messages(1, b'{"value":"' + value + b'"}'))
    _put(target, messages(20_000, b'{"value":"AA==","key":"' + b"A" * 30 + b'"}'))
    _put(target, b'{"messages":[' + b" " * (MIB - 100) + b"]}")
    _put(target, b'{"messages":[' + b'{"value":"AA=="},' * 60_000)


@case("PutMessages")
def bodies_that_are_never_whole(target: Target) -> None:
    path = f"{BASE}/streams/{target.streams['sink']}/messages"
    with many(target, 30) as connections:
        for connection in connections:
            send_what_it_takes(connection, request("POST", path, b"", {"content-length": str(30 * MIB)}) + bytes(MIB))
        target.survives("GET", f"{BASE}/nothing")


# Lists


@case("ListStreams")
@case("ListStreamPools")
@case("ListConnectHarnesses")
@case("ListWorkRequests")
def every_page(target: Target) -> None:
    if not target.open:
        return
    for path in ("/streams", "/streampools", "/connectharnesses", "/workRequests"):
        page = ""
        for _ in range(5):
            with target.connect() as connection:
                path_and_query = f"{BASE}{path}?compartmentId={COMPARTMENT}&limit=50{page}"
                connection.sendall(request("GET", path_and_query, headers={"connection": "close"}))
                received = read_all(connection)
            assert answer_of(received)[0] == 200
            _, found, rest = received.partition(b"opc-next-page: ")
            if not found:
                break
            page = "&page=" + rest.partition(b"\r\n")[0].decode()


@case("CreateStream")
def more_partitions_than_there_can_be(target: Target) -> None:
    for count in (10**6, 2**31 - 1, 2**63, 10**30):
        made = {"name": "wide", "compartmentId": COMPARTMENT, "partitions": count}
        target.survives("POST", f"{BASE}/streams", json.dumps(made).encode())


# Signatures: before anybody is known

SIGNATURE = 'Signature version="1",algorithm="rsa-sha256",keyId="{key}",headers="{names}",signature="{value}"'
_KEY = "ocid1.tenancy.oc1..t/ocid1.user.oc1..u/" + ":".join(["aa"] * 16)
_NAMES = "date (request-target) host"


@case("authentication")
def signatures_with_huge_fields(target: Target) -> None:
    deep = "ST$" + ".".join(["e30", base64.urlsafe_b64encode(b'{"a":' * 2000).decode().rstrip("="), "x"])
    for key, names, value in (
        (_KEY, " ".join(f"x-{number}" for number in range(1500)), "AAAA"),
        ("a/" * 7000, _NAMES, "AAAA"),
        (_KEY, _NAMES, "A" * 15_000),
        (deep, _NAMES, "AAAA"),
        ("ST$" + "a." * 7000, _NAMES, "AAAA"),
        ("resource/v" + "1." * 7000 + "/x", _NAMES, "AAAA"),
        (_KEY, "date" + " " * 15_000, "AAAA"),
    ):
        told = {"authorization": SIGNATURE.format(key=key, names=names, value=value), "date": "x" * 1000}
        target.survives("GET", f"{BASE}/streams/x", headers=told)
    for told_as in (
        "Signature " + " " * 15_000,
        "Signature " + 'a="",' * 3000,
        "Signature " + "a" * 15_000,
        "x" * 60_000,
    ):
        target.survives("GET", f"{BASE}/streams/x", headers={"authorization": told_as})


@case("authentication")
def many_different_signatures(target: Target) -> None:
    with target.connect() as connection:
        for number in range(1000):
            names = _NAMES + "".join(f" x-{number}-{other}" for other in range(80))
            told = {"authorization": SIGNATURE.format(key=_KEY, names=names[:1000], value="AAAA"), "date": "x"}
            connection.sendall(request("GET", f"{BASE}/streams/x", headers=told))
            assert connection.recv(65536)


@case("authentication")
def one_header_many_times(target: Target) -> None:
    lines = "x-a: b\r\n" * 8000
    told = SIGNATURE.format(key=_KEY, names=_NAMES + " x-a", value="AAAA")
    with many(target, 20) as connections:
        for connection in connections:
            head = f"GET {BASE}/streams/x HTTP/1.1\r\nhost: localhost\r\nauthorization: {told}\r\n{lines}\r\n"
            send_what_it_takes(connection, head.encode())
        for connection in connections:
            assert connection.recv(65536)


# The listener: before there is a request


@case("listener")
def heads_of_all_sorts(target: Target) -> None:
    start = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
    for sent in (
        b"\r\n" * (MIB // 2),
        b"G" * MIB,
        b"GET /" + b"a" * MIB,
        b"GET " + b"/" * HEAD + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        start + b"x: " + b"a" * MIB,
        start + b"x" * MIB,
        start + b"a:b\r\n" * 200_000,
        start + b"a:\r\n" * 15_000 + b"connection: close\r\n\r\n",
        start + b"content-length: " + b"9" * HEAD + b"\r\n\r\n",
        start + b"transfer-encoding: " + b"chunked," * 7000 + b"\r\n\r\n",
        b"\x16\x03\x01" + bytes(MIB),
        b"GET http://" + b"a" * HEAD + b"/ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ):
        with target.connect() as connection:
            send_what_it_takes(connection, sent)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            assert answer_of(read_all(connection))[0] in {0, 200, 400, 403, 404, 405, 431}


@case("listener")
def requests_one_after_another_unread(target: Target) -> None:
    for one in (
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        request("GET", f"{BASE}/nothing"),
        request("GET", "/healthz"),
    ):
        with target.connect() as connection:
            connection.setblocking(False)
            sent = 0
            data = one * (MIB // len(one))
            with contextlib.suppress(BlockingIOError, ConnectionError):
                while sent < len(data):
                    sent += connection.send(data[sent:])
            target.survives("GET", f"{BASE}/nothing")
            connection.setblocking(True)
            assert connection.recv(100)


@case("listener")
def bodies_in_chunks_of_a_byte(target: Target) -> None:
    for path in (f"{BASE}/streams/{target.streams['sink']}/messages", f"{BASE}/streams", "/healthz", "/"):
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        for chunk in (b"1\r\nx\r\n", b"1;" + b"e" * 100 + b"\r\nx\r\n", b"000000000000001\r\nx\r\n"):
            with target.connect() as connection:
                send_what_it_takes(connection, head.encode() + chunk * (MIB // len(chunk)) + b"0\r\n\r\n")
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                assert answer_of(read_all(connection))[0] < 500


@case("listener")
def trailers(target: Target) -> None:
    head = request("POST", f"{BASE}/streams", b"0\r\n", {"transfer-encoding": "chunked", "connection": "close"})
    head = head.replace(b"content-length: 3\r\n", b"")
    with target.connect() as connection:
        send_what_it_takes(connection, head + b"a:b\r\n" * 200_000 + b"\r\n")
        assert answer_of(read_all(connection))[0] in {0, 400, 401}


@case("listener")
def heads_a_byte_at_a_time(target: Target) -> None:
    with many(target, 50) as connections:
        for byte in b"GET / HTTP/1.1\r\nhost: localhost\r\nx: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":
            for connection in connections:
                connection.sendall(bytes([byte]))


@case("listener")
def connections_that_say_nothing_and_ones_that_are_reset(target: Target) -> None:
    with many(target, 300) as connections:
        target.survives("GET", f"{BASE}/nothing")
        for connection in connections[:150]:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@case("CreateGroupCursor")
def many_instances_of_a_group(target: Target) -> None:
    """500 requests: remains of each do not make the next one slower."""
    body = {"groupName": "crowd", "type": "LATEST", "timeoutInMs": 2**31 - 1}
    path = f"{BASE}/streams/{target.streams['empty']}/groupCursors"
    connection = http.client.HTTPConnection(target.http, timeout=60)
    for number in range(500):
        content = json.dumps({**body, "instanceName": f"{number:0>255}"}).encode()
        connection.request("POST", path, content)
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 500
    connection.close()


@case("CreateStreamPool")
def resources_with_as_much_in_them_as_there_may_be(target: Target) -> None:
    """100 requests of almost 64 KiB, which are kept."""
    tags = {f"{number:0>100}": "x" * 256 for number in range(150)}
    for number in range(100):
        made = {"name": f"pool-{number}", "compartmentId": COMPARTMENT, "freeformTags": tags}
        target.survives("POST", f"{BASE}/streampools", json.dumps(made).encode())


def _crowd(message: dict[str, object], target: Target) -> None:
    """Bodies that are just below what is read in a thread, and are whole at the same moment."""
    each = len(json.dumps(message, separators=(",", ":"))) + 1
    body = json.dumps({"messages": [message] * (240_000 // each)}, separators=(",", ":")).encode()
    with many(target, 300) as connections:
        put = request("POST", path_of(target, OPERATIONS["PutMessages"]), body, {"connection": "close"})
        for connection in connections:
            send_what_it_takes(connection, put[:-1])
        for connection in connections:
            send_what_it_takes(connection, put[-1:])
        for connection in connections:
            read_all(connection)


case("PutMessages", "crowd")(partial(_crowd, {"value": "AA=="}))
case("PutMessages", "crowd_of_unusual")(partial(_crowd, {"value": "AA==", "x": []}))
