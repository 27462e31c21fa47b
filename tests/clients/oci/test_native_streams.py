"""Streams that lie in Redis as plain Redis Streams: Oracle's SDK on one side, any Redis program on the other."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from tests.harness.wire import Wire

import oci
from headrace.testing import InProcessServer
from headrace.testing.oci import GroupReader, OciClients, put, text_of

models = oci.streaming.models


@pytest.fixture
def started() -> Iterator[InProcessServer]:
    with InProcessServer() as running:
        yield running


@pytest.fixture
def clients(started: InProcessServer) -> OciClients:
    return OciClients(started.http)


@pytest.fixture
def client(clients: OciClients) -> Any:
    return clients.stream_client()


@pytest.fixture
def stream(clients: OciClients, started: InProcessServer) -> Any:
    with Wire(started.kafka) as wire:
        wire.create("sensors", headrace_storage="native")
    (found,) = clients.admin_client().list_streams(compartment_id=clients.compartment_id, name="sensors").data
    return found


@pytest.fixture
def link(started: InProcessServer) -> Iterator[Any]:
    """A Redis program."""
    with redis.Redis.from_url(started.storage, decode_responses=True) as client:
        yield client


def drain(client: Any, stream: Any, kind: str = "TRIM_HORIZON", **details: Any) -> list[Any]:
    asked = models.CreateCursorDetails(partition="0", type=kind, **details)
    cursor = client.create_cursor(stream.id, asked).data.value
    found: list[Any] = []
    while True:
        answer = client.get_messages(stream.id, cursor, limit=7)
        if not answer.data:
            return found
        found += answer.data
        cursor = answer.headers["opc-next-cursor"]


def test_messages_are_entries_and_entries_are_messages(client: Any, stream: Any, link: Any) -> None:
    entries = put(client, stream.id, "v0", "v1", key="k")
    key = "headrace:sensors:0"
    assert [(fields["key"], fields["value"]) for _, fields in link.xrange(key)] == [("k", "v0"), ("k", "v1")]
    link.xadd(key, {"key": "r", "value": "of Redis"})
    put(client, stream.id, "v2")

    found = drain(client, stream)
    assert [text_of(message.value) for message in found] == ["v0", "v1", "of Redis", "v2"]
    assert [message.key and text_of(message.key) for message in found] == ["k", "k", "r", None]
    assert [message.offset for message in found[:2]] == [entry.offset for entry in entries]
    assert [message.timestamp for message in found[:2]] == [entry.timestamp for entry in entries]
    offsets = [message.offset for message in found]
    assert offsets == sorted(set(offsets))


def test_cursors_by_offset_and_time(client: Any, stream: Any, started: InProcessServer) -> None:
    entries = []
    for number in range(10):
        entries += put(client, stream.id, f"v{number}")
        started.clock.advance(minutes=1)

    def values(kind: str, **details: Any) -> list[str]:
        return [text_of(message.value) for message in drain(client, stream, kind, **details)]

    every = [f"v{number}" for number in range(10)]
    assert values("AT_OFFSET", offset=entries[4].offset) == every[4:]
    assert values("AFTER_OFFSET", offset=entries[4].offset) == every[5:]
    assert values("AT_TIME", time=entries[4].timestamp) == every[4:]
    assert values("LATEST") == []


def test_groups(client: Any, stream: Any, started: InProcessServer) -> None:
    entries = put(client, stream.id, *(str(number) for number in range(300)))
    a = GroupReader(client, stream.id, "g", "A")
    assert a.values(100) == [str(number) for number in range(100)]
    assert a.values(100) == [str(number) for number in range(100, 200)]
    (shown,) = client.get_group(stream.id, "g").data.reservations
    assert (shown.committed_offset, shown.reserved_instance) == (entries[99].offset, "A")
    started.clock.advance(seconds=31)
    b = GroupReader(client, stream.id, "g", "B")
    assert b.values(100) == [str(number) for number in range(100, 200)]
    started.restart()
    assert b.values(100) == [str(number) for number in range(200, 300)]
    b.commit()
    assert b.values() == []
    client.update_group(stream.id, "g", models.UpdateGroupDetails(type="AT_TIME", time=entries[0].timestamp))
    assert b.values(1) == ["0"]
