"""The way of a request: ids, endpoints, bodies, methods, what is no HTTP."""

import re
import socket

import pytest
from tests.harness.wire import Wire
from tests.oci.conftest import COMPARTMENT, Api, details, new_stream

from headrace.oci.settings import DISABLED
from headrace.testing import InProcessServer


def raw(server: InProcessServer, sent: bytes, enough: bytes = b"\r\n\r\n") -> bytes:
    """What a server answers to bytes, up to `enough` or its end."""
    host, _, port = server.http.removeprefix("http://").partition(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent)
        while enough not in received and (chunk := connection.recv(65536)):
            received += chunk
    return received


def test_a_request_id_comes_back_and_one_is_made_where_there_is_none(api: Api, stream: str) -> None:
    path = f"/streams/{stream}"
    assert api.call("GET", path, headers={"opc-request-id": "mine/1"}).headers["opc-request-id"] == "mine/1"
    assert api.call("GET", "/nothing", headers={"opc-request-id": "mine/2"}).headers["opc-request-id"] == "mine/2"
    assert re.fullmatch(r"[0-9A-F]{32}", api.call("GET", path).headers["opc-request-id"])
    for odd in ("x" * 300, "a b", "\xe4"):
        assert re.fullmatch(
            r"[0-9A-F]{32}", api.call("GET", path, headers={"opc-request-id": odd}).headers["opc-request-id"]
        )


def test_expect_100_continue_is_answered_at_once(oci_server: InProcessServer, stream: str) -> None:
    head = f"POST /20180418/streams/{stream}/messages HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    assert raw(oci_server, f"{head}content-length: 5\r\n\r\n".encode()) == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(oci_server: InProcessServer, stream: str) -> None:
    head = f"POST /20180418/streams/{stream}/messages HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    answer = raw(oci_server, f"{head}content-length: 99999999\r\n\r\n".encode(), b"MiB")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in answer
    assert b"Request size is limited to 1 MiB" in answer


def test_what_is_kept_of_a_request_has_a_limit_of_its_own(api: Api, stream: str) -> None:
    tags = {f"k{number}": "v" * 100 for number in range(1_000)}
    code = (400, "InvalidParameter", "Request size is limited to 64 KiB for UpdateStream")
    assert api.call("PUT", f"/streams/{stream}", {"freeformTags": tags}).error == code
    few = dict(list(tags.items())[:100])
    assert api.done("PUT", f"/streams/{stream}", {"freeformTags": few})["freeformTags"] == few


def test_a_rejected_first_request_closes_the_connection(oci_server: InProcessServer) -> None:
    head = "POST /20180418/nothing HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    answer = raw(oci_server, head.encode(), b"}")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"\r\nconnection: close\r\n" in answer


def test_a_body_that_is_too_large_and_sent_all_the_same_is_answered_too(api: Api, stream: str) -> None:
    path = f"/streams/{stream}"
    huge = b" " * (2 << 20)
    assert api.call("PUT", path, huge).error == (400, "InvalidParameter", "Request size is limited to 1 MiB")
    # The connection goes on.
    assert api.call("GET", path).status == 200


def test_a_chunked_body_is_taken_and_bounded(oci_server: InProcessServer, stream: str) -> None:
    head = f"POST /20180418/streams/{stream}/%s HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    sent = (head % "messages").encode() + b'e\r\n{"messages":[]\r\n1\r\n}\r\n0\r\n\r\n'
    assert b"at least one message" in raw(oci_server, sent, b"}")
    chunk = b"80000\r\n" + b" " * 0x80000 + b"\r\n"
    assert b"limited to 1 MiB" in raw(oci_server, (head % "cursors").encode() + chunk * 3 + b"0\r\n\r\n", b"MiB")


@pytest.mark.parametrize(
    "sent",
    [b"NONSENSE\r\n\r\n", b"GET /20180418/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00",
     b"POST /20180418/streams HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n"],
)  # fmt: skip
def test_invalid_http_is_answered_in_json(oci_server: InProcessServer, sent: bytes) -> None:
    answer = raw(oci_server, sent, b"}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'{"code":"CannotParseRequest","message":"Invalid HTTP request received."}')
    assert re.search(rb"\r\nopc-request-id: [0-9A-F]{32}\r\n", answer)


def test_unknown_paths_and_methods(api: Api, stream: str) -> None:
    assert api.call("GET", "/nothing").error == (404, "NotFound", "Not Found")
    reply = api.call("PATCH", f"/streams/{stream}/messages", b"{}")
    assert reply.error[:2] == (405, "MethodNotAllowed")
    assert reply.headers["allow"] == "GET, POST"
    head = api.call("HEAD", f"/streams/{stream}/messages")
    assert (head.status, head.body) == (405, b"")


def test_slashes_of_an_endpoint(api: Api, stream: str) -> None:
    for base in ("//20180418", "/20180418/", "//20180418//"):
        assert api.call("GET", f"/streams/{stream}", base=base).status == 200


def test_the_other_listener_keeps_its_paths(api: Api) -> None:
    assert api.call("GET", "/healthz", base="").json["status"] == "ok"
    assert api.call("POST", "/healthz", base="").status == 405


@pytest.mark.parametrize("path", ["/20180418x", "/20190101/streams", "/streams", "/prefix/20180418/streams", "/a%2Fb"])
def test_an_unknown_path_is_an_error_that_clients_can_read(api: Api, path: str) -> None:
    for method, body in (("GET", None), ("POST", b"{}"), ("DELETE", None)):
        assert api.call(method, path, body, base="").error == (404, "NotFound", "Not Found")


def test_messages_endpoint_is_the_address_by_which_the_client_asked(api: Api, stream: str) -> None:
    told = api.done("GET", f"/streams/{stream}", headers={"host": "streaming.example.org:8443"})["messagesEndpoint"]
    assert told == "http://streaming.example.org:8443"


def test_requests_sent_at_once_are_answered_in_order(oci_server: InProcessServer, stream: str) -> None:
    request = "GET /20180418/streams/{} HTTP/1.1\r\nhost: localhost\r\nopc-request-id: {}\r\n\r\n"
    sent = "".join(request.format(stream, number) for number in range(10)).encode()
    received = raw(oci_server, sent, b"opc-request-id: 9")
    assert re.findall(rb"opc-request-id: (\d)", received) == [b"%d" % number for number in range(10)]


def test_a_stream_that_is_not_there(api: Api, stream: str) -> None:
    other = "ocid1.stream.oc1.local." + "0" * 32
    for unknown in (other, "nonsense", stream + "0", stream.replace("stream", "streampool")):
        for method, path, body in (
            ("GET", "messages?cursor=x", None),
            ("POST", "messages", details((None, b"v"))),
            ("POST", "cursors", {"partition": "0", "type": "LATEST"}),
            ("POST", "groupCursors", {"groupName": "g", "type": "LATEST"}),
            ("POST", "commit?cursor=x", None),
            ("POST", "heartbeat?cursor=x", None),
            ("GET", "groups/g", None),
            ("PUT", "groups/g", {"type": "LATEST"}),
        ):
            reply = api.call(method, f"/streams/{unknown}/{path}", body)
            assert reply.error == (404, "NotAuthorizedOrNotFound", f"Unknown stream {unknown}")


def test_a_deleted_stream_is_unknown_to_its_cursors(api: Api) -> None:
    stream, _ = new_stream(api)
    cursors = [api.cursor(stream), api.group_cursor(stream, "g")]
    assert api.call("DELETE", f"/streams/{stream}").status == 204
    for cursor in cursors:
        assert api.get(stream, cursor).error == (404, "NotAuthorizedOrNotFound", f"Unknown stream {stream}")


def test_a_fault_of_ours_is_500_without_a_trace(
    api: Api, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("headrace.oci.operations.cursors._partition", broken)
    reply = api.call("POST", f"/streams/{stream}/cursors", {"partition": "0", "type": "LATEST"})
    assert reply.error == (500, "InternalServerError", "Internal server error")
    assert "secret" in caplog.text


def test_headers_have_an_end(oci_server: InProcessServer, api: Api, stream: str) -> None:
    start = f"GET /20180418/streams/{stream} HTTP/1.1\r\nhost: localhost\r\n".encode()
    assert raw(oci_server, start + b"x: " + bytes(60_000).replace(b"\0", b"a") + b"\r\n\r\n").startswith(
        b"HTTP/1.1 200 "
    )
    many = b"".join(b"x-%d: %b\r\n" % (number, b"a" * 1000) for number in range(100))
    chunked = b"POST /20180418/streams HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    for sent in (
        start + many + b"\r\n",
        start + b"x: " + b"a" * 600_000,  # and never an end
        b"GET /20180418/" + b"a" * 600_000,
        chunked + b"x: " + b"a" * 600_000,
        b"a" * 600_000,
    ):
        answer = raw(oci_server, sent, b'"}')
        assert b"HTTP/1.1 400 " in answer, sent[:40]
        assert b'"code":"CannotParseRequest"' in answer, sent[:40]
    assert b"longer than 64 KiB" in raw(oci_server, start + many + b"\r\n", b'"}')


def test_requests_in_a_row_are_answered_in_a_row(oci_server: InProcessServer, stream: str) -> None:
    put = f"POST /20180418/streams/{stream}/messages HTTP/1.1\r\nhost: localhost\r\n".encode()
    body = b'{"messages":[{"value":"YQ=="}]}'
    sent = b"".join(
        put + b"opc-request-id: r%d\r\ncontent-length: %d\r\n\r\n%b" % (number, len(body), body)
        for number in range(4_000)
    )
    last = b"GET /20180418/nothing HTTP/1.1\r\nhost: localhost\r\nopc-request-id: last\r\nconnection: close\r\n\r\n"
    answers = raw(oci_server, sent + last, b'Not Found"}')
    ids = [int(found) for found in re.findall(rb"opc-request-id: r([0-9]+)\r\n", answers)]
    assert ids == list(range(4_000))
    offsets = [int(found) for found in re.findall(rb'"offset":([0-9]+)', answers)]
    assert offsets == list(range(4_000))


def test_a_disabled_api_answers_404_with_the_setting() -> None:
    reason = (404, "NotAuthorizedOrNotFound", DISABLED)
    with InProcessServer(oci_enable=False, oci_auth="off") as server, Wire(server.kafka) as wire:
        wire.create("flights")
        api = Api(server.http)
        try:
            for method, path in (
                ("GET", f"/streams?compartmentId={COMPARTMENT}"),
                ("GET", "/nothing"),
                ("DELETE", "/streams"),
                ("GET", "/openapi.json"),
                ("GET", ""),
            ):
                assert api.call(method, path).error == reason, path
            assert api.call("POST", "/streams", {"name": "a"}).error == reason
            assert api.call("GET", "/nothing", base="/other").error[2] != DISABLED
            assert api.call("GET", "/readyz", base="").status == 200
            assert b"flights" in api.call("GET", "/topics", base="").body
        finally:
            api.close()
