"""`oci.limits=strict`, and injected faults: the errors for clients."""

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from tests.harness.clocks import StandingClock
from tests.oci.conftest import BASE, Api, details, new_stream

from headrace.records.partition_batches import partition_of
from headrace.testing import InProcessServer


@pytest.fixture(scope="module")
def strict() -> Iterator[InProcessServer]:
    with InProcessServer(clock=StandingClock(), oci_auth="off", oci_limits="strict") as server:
        yield server


@pytest.fixture
def slow(strict: InProcessServer) -> Iterator[Api]:
    strict.clock.advance(minutes=10)
    made = Api(strict.http)
    yield made
    made.close()


def test_a_partition_takes_a_megabyte_a_second(strict: InProcessServer, slow: Api) -> None:
    stream, _ = new_stream(slow, 2)
    keys = {partition_of(b"%d" % number, 2): b"%d" % number for number in range(10)}
    large = details((keys[0], bytes(1_039_999)))
    path = f"/streams/{stream}/messages"
    assert slow.done("POST", path, large)["failures"] == 0

    result = slow.done("POST", path, details((keys[0], b"x"), (keys[1], b"y"), (keys[0], b"z")))
    assert result["failures"] == 2
    assert [entry.keys() for entry in result["entries"]] == [
        {"error", "errorMessage"}, {"partition", "offset", "timestamp"}, {"error", "errorMessage"},
    ]  # fmt: skip
    assert result["entries"][0]["error"] == "429"
    told = "Request was throttled because bytes limit exhausted, next request can be made in 41 ms"
    assert result["entries"][0]["errorMessage"] == told

    reply = slow.call("POST", path, large)
    assert reply.error == (429, "TooManyRequests", told)
    assert reply.headers["retry-after"] == "1"
    strict.clock.advance(seconds=0.041)
    assert slow.done("POST", path, details((keys[0], b"x")))["failures"] == 0


def test_five_reads_a_second(strict: InProcessServer, slow: Api) -> None:
    stream, _ = new_stream(slow, 2)
    single, other = slow.cursor(stream), slow.cursor(stream, partition=1)
    grouped = slow.group_cursor(stream, "g", instanceName="a")
    statuses = [[slow.get(stream, cursor).status for _ in range(8)] for cursor in (single, grouped)]
    assert statuses == [[200] * 5 + [429] * 3] * 2
    assert slow.get(stream, other).status == 200
    strict.clock.advance(seconds=1)
    assert slow.get(stream, single).status == 200


def test_five_calls_a_second_of_each_kind(slow: Api) -> None:
    stream, _ = new_stream(slow)
    asked = {"partition": "0", "type": "LATEST"}
    found = [slow.call("POST", f"/streams/{stream}/cursors", asked).status for _ in range(8)]
    assert found == [200] * 5 + [429] * 3
    reply = slow.call("GET", f"/streams/{stream}/groups/g")
    assert reply.status == 404


def test_faults_of_a_header(api: Api, stream: str) -> None:
    def put(fault: str) -> int:
        return api.call(
            "POST", f"/streams/{stream}/messages", details((None, b"v")), {"x-headrace-fault": fault}
        ).status

    assert [put("429*2") for _ in range(4)] == [429, 429, 200, 200]
    assert [put("PutMessages:500*1,GetMessages:503") for _ in range(2)] == [500, 200]
    assert put("no such thing") == 400
    entries = api.done(
        "POST", f"/streams/{stream}/messages", details(*[(None, b"v")] * 5), {"x-headrace-fault": "entries=2"}
    )
    assert entries["failures"] == 2
    assert [entry.get("error") for entry in entries["entries"]] == ["429", "429", None, None, None]
    everything = api.done(
        "POST", f"/streams/{stream}/messages", details((None, b"v")), {"x-headrace-fault": "entries=9"}
    )
    assert everything["failures"] == 1


def test_a_lost_answer_is_of_something_done(api: Api, stream: str) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        api.call("POST", f"/streams/{stream}/messages", details((None, b"once")), {"x-headrace-fault": "lost"})
    api.close()
    assert api.values(stream, api.cursor(stream)) == [b"once"]


def test_faults_of_the_setting_and_slowness_by_the_servers_clock() -> None:
    with InProcessServer(oci_auth="off", oci_faults="GetMessages:behind*1,CreateCursor:slow=100*1") as server:
        api = Api(server.http)
        stream, _ = new_stream(api)
        began = time.monotonic()
        cursor = api.cursor(stream)
        assert time.monotonic() - began >= 0.09
        assert "outside the retention period" in api.get(stream, cursor).error[2]
        assert api.get(stream, cursor).status == 200
        api.close()


def test_who_is_slow_on_purpose_holds_no_memory_that_others_wait_for() -> None:
    """Bodies over 64 KiB have one budget. Before, a few of those that wait held all of it, also when they had left."""
    with InProcessServer(oci_auth="off", queued_max_request_bytes=4 << 20) as server:
        api = Api(server.http)
        stream, _ = new_stream(api)
        host = server.http.removeprefix("http://")
        name, port = host.split(":")
        content = json.dumps(details((None, b"v" * 200_000))).encode()
        head = f"POST {BASE}/streams/{stream}/messages HTTP/1.1\r\nhost: {host}\r\n"
        head += f"x-headrace-fault: slow=60000\r\ncontent-length: {len(content)}\r\n\r\n"
        waiting = [socket.create_connection((name, int(port))) for _ in range(24)]
        for each in waiting:
            each.sendall(head.encode() + content[:1_000])
        began = time.monotonic()
        for _ in range(3):
            assert api.call("POST", f"/streams/{stream}/messages", content).status == 200
        assert time.monotonic() - began < 30
        for each in waiting:
            each.close()
        api.close()
