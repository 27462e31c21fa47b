"""Many pages and lists of a server with thousands of topics, open or requested at once, affect no other client."""

import http.client
import selectors
import socket
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from headrace.protocol.messages import CreateTopicsRequest
from headrace.records.build import build
from headrace.testing import server
from headrace.testing.process import Server
from tests.harness.wire import Wire
from tests.hostile.http.attacking import BASE, COMPARTMENT, Target, many, read_all, request
from tests.hostile.http.bystander import Bystander

TOPICS, PAGES, ASKED = 8_000, 60, 200
_LISTEN_S = 5.0
"""The server looks for events every two seconds."""


@pytest.fixture(scope="module")
def crowded() -> Iterator[tuple[Server, Target, Bystander]]:
    with server(console_write=True, oci_auth="off") as started:
        with Wire(started.kafka, timeout_s=120) as wire:
            for first in range(0, TOPICS, 500):
                made = [
                    CreateTopicsRequest.CreatableTopic(
                        name=f"topic-{number:05}", num_partitions=1, replication_factor=-1
                    )
                    for number in range(first, first + 500)
                ]
                wire.ask(CreateTopicsRequest(topics=made, timeout_ms=120_000), 7)
        address = started.http.removeprefix("http://")
        target = Target(http=address, kafka=started.kafka, streams={}, cursors={}, open=True)
        # Templates are compiled for the first one.
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        bystander = Bystander(started)
        yield started, target, bystander
        bystander.close()


@pytest.mark.parametrize("path", ["/", "/topics", "/groups"])
def test_open_pages_affect_no_other_client(crowded: tuple[Server, Target, Bystander], path: str) -> None:
    _, target, bystander = crowded

    def listen() -> None:
        with many(target, PAGES) as connections, selectors.DefaultSelector() as ready:
            for connection in connections:
                connection.sendall(request("GET", f"/events?of={quote(path, safe='')}"))
                ready.register(connection, selectors.EVENT_READ)
            until = time.monotonic() + _LISTEN_S
            while (left := until - time.monotonic()) > 0:
                for key, _ in ready.select(left):
                    assert isinstance(key.fileobj, socket.socket)
                    assert key.fileobj.recv(1 << 20)

    print(bystander.harmless(listen))


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics?sort=records", "/topics?q=topic&sort=in", "/topics?q=7", "/groups"]
)
def test_requested_pages_affect_no_other_client(crowded: tuple[Server, Target, Bystander], path: str) -> None:
    _, target, bystander = crowded

    def ask() -> None:
        with many(target, ASKED) as connections:
            for connection in connections:
                connection.sendall(request("GET", path, headers={"connection": "close"}))
            for connection in connections:
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")

    print(bystander.harmless(ask))


def test_requested_records_of_a_plain_stream_affect_no_other_client(
    crowded: tuple[Server, Target, Bystander],
) -> None:
    started, target, bystander = crowded
    topic = CreateTopicsRequest.CreatableTopic(
        name="plain",
        num_partitions=1,
        replication_factor=-1,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="headrace.storage", value="native")],
    )
    with Wire(started.kafka, timeout_s=60) as wire:
        wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)
        for _ in range(20):
            assert wire.produce("plain", bytes(build([(None, bytes(800_000), 1, ())]))).error_code == 0

    def ask() -> None:
        with many(target, 60) as connections:
            for connection in connections:
                connection.sendall(request("GET", "/topics/plain/records?from=oldest", headers={"connection": "close"}))
            for connection in connections:
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")

    print(bystander.harmless(ask))


@pytest.mark.parametrize("what", ["streams", "streampools", "workRequests"])
def test_requested_lists_affect_no_other_client(crowded: tuple[Server, Target, Bystander], what: str) -> None:
    _, target, bystander = crowded
    asked = request("GET", f"{BASE}/{what}?compartmentId={COMPARTMENT}", headers={"connection": "close"})

    def ask() -> None:
        with many(target, ASKED) as connections:
            for connection in connections:
                connection.sendall(asked)
            for connection in connections:
                assert read_all(connection).startswith(b"HTTP/1.1 200 ")

    print(bystander.harmless(ask))
