"""Pages that stay open receive events for changes until their subject is gone."""

import contextlib
import json
import socket
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from tests.console.visiting import EVIL, Safe, ask, create, produce
from tests.harness.wire import Wire

from headrace.console.event_stream import MOST, MOST_OF_ONE, EventStream, EventStreams
from headrace.console.registry import PAGES, Target, Viewer
from headrace.protocol.messages import (
    AlterUserScramCredentialsRequest,
    CreatePartitionsRequest,
    DeleteTopicsRequest,
)
from headrace.security.access.principal import Principal
from headrace.testing import InProcessServer

if TYPE_CHECKING:
    from headrace.console.event_stream import AskFor, Fragment, Granted, LoadPage
    from headrace.console.server_data import Figures


class Stream:
    """Server-sent events as they come."""

    def __init__(self, server: InProcessServer, path: str, head: str = "") -> None:
        host, port = server.http.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        asked = f"GET /events?of={quote(path, safe='')} HTTP/1.1\r\nhost: {host}:{port}\r\n{head}\r\n"
        self._socket.sendall(asked.encode())
        self._file = self._socket.makefile("rb")
        self.head = b"".join(iter(self._file.readline, b"\r\n"))

    def event(self) -> tuple[str, object]:
        """The next one; raises EOFError when there is none any more."""
        name = ""
        for line in self._file:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return name, json.loads(line[6:])
            elif line == b"0\r\n":  # the last chunk
                break
        raise EOFError

    def rest(self) -> list[str]:
        """The names of all events until the stream ends."""
        names = []
        with contextlib.suppress(EOFError):
            while True:
                names.append(self.event()[0])
        return names

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def test_a_page_receives_changes_only(server: InProcessServer) -> None:
    create(server, ("living", 1))
    stream = Stream(server, "/topics/living")
    assert b"text/event-stream" in stream.head
    name, cells = stream.event()
    assert name == "cells"
    assert isinstance(cells, dict)
    assert cells["records"] == "0"
    produce(server, "living", (b"k", b"v"))
    server.clock.advance(seconds=2)
    while True:
        name, cells = stream.event()
        assert name == "cells"
        assert isinstance(cells, dict)
        assert "0.epoch" not in cells
        if "records" in cells:
            break
        server.clock.advance(seconds=2)
    assert (cells["records"], cells["0.end"]) == ("1", "1")
    # Another partition makes it another page.
    with Wire(server.kafka) as wire:
        grow = CreatePartitionsRequest.CreatePartitionsTopic(name="living", count=2, assignments=None)
        wire.ask(CreatePartitionsRequest(topics=[grow], timeout_ms=10_000, validate_only=False), 2)
    server.clock.advance(seconds=2)
    while stream.event()[0] != "shape":
        server.clock.advance(seconds=2)
    stream.close()


def test_records_are_sent_as_they_arrive(server: InProcessServer) -> None:
    create(server, ("tailed", 1))
    stream = Stream(server, "/topics/tailed/records?partition=0&tail=0")
    assert stream.event()[0] == "cells"
    produce(server, "tailed", (EVIL.encode(), b"<b>new</b>"))
    server.clock.advance(seconds=2)
    while True:
        name, told = stream.event()
        if name == "rows":
            break
        server.clock.advance(seconds=2)
    stream.close()
    assert isinstance(told, dict)
    assert "&lt;b&gt;new&lt;/b&gt;" in told["html"]
    Safe().feed(told["html"])


def test_streams_end_with_their_topic_their_login_and_the_server(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    login = f"authorization: Basic {b64encode(b'jane:secret').decode()}\r\n"
    with InProcessServer(oci_auth="off", bootstrap_user=first) as server:
        assert ask(server, "/events?of=/nowhere").status == 404
        create(server, ("short", 1))
        gone, staying, removed = Stream(server, "/topics/short"), Stream(server, "/"), Stream(server, "/", login)
        assert gone.event()[0] == staying.event()[0] == removed.event()[0] == "cells"
        with Wire(server.kafka) as wire:
            wire.ask(DeleteTopicsRequest(topic_names=["short"], timeout_ms=10_000), 3)
            jane = [AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="jane", mechanism=n) for n in (1, 2)]
            wire.ask(AlterUserScramCredentialsRequest(deletions=jane, upsertions=[]), 0)
        server.clock.advance(seconds=2)
        assert gone.rest()[-1] == removed.rest()[-1] == "gone"
        server.stop()
        assert set(staying.rest()) <= {"cells", "shape"}
        for stream in (gone, staying, removed):
            stream.close()


def test_one_visitor_has_a_share_of_the_open_pages(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text("jane:secret")
    login = f"authorization: Basic {b64encode(b'jane:secret').decode()}\r\n"
    with InProcessServer(oci_auth="off", bootstrap_user=first) as server:
        streams = [Stream(server, "/") for _ in range(MOST_OF_ONE)]
        assert {each.event()[0] for each in streams} == {"cells"}
        refused = Stream(server, "/")
        assert b" 503 " in refused.head
        assert b"retry-after: 10" in refused.head
        jane = Stream(server, "/", login)
        assert jane.event()[0] == "cells"
        # The place of one that is gone is free again.
        streams.pop().close()
        for _ in range(1_000):
            again = Stream(server, "/")
            if b" 200 " in again.head:
                break
            again.close()
        assert again.event()[0] == "cells"
        for stream in (*streams, refused, jane, again):
            stream.close()


def test_who_has_many_pages_open_makes_room_for_who_has_few() -> None:
    figures = SimpleNamespace(sampler=SimpleNamespace(looks=set()))
    streams = EventStreams(
        cast("Figures", figures),
        cast("LoadPage", None),
        cast("Fragment", None),
        cast("Granted", None),
        cast("AskFor", None),
    )

    def target(user: str) -> Target:
        made = Target("/", "")
        made.asker = Viewer(Principal(user), "10.0.0.1")
        return made

    def opens(user: str) -> bool:
        stream = streams.open(PAGES["Overview"], target(user))
        if isinstance(stream, EventStream):
            streams.add(stream)
        return isinstance(stream, EventStream)

    for user in "abcd":
        assert [opens(user) for _ in range(MOST_OF_ONE + 1)] == [True] * MOST_OF_ONE + [False]
    # As many as the one with the most would have.
    assert [opens("e") for _ in range(MOST)].count(True) == MOST // 5
    assert len(figures.sampler.looks) == MOST
