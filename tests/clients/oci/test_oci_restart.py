"""What the SDK holds in its hands goes on being good when the server was stopped, or killed, and started again."""

from collections.abc import Iterator
from typing import Any

import pytest

import oci
from headrace.testing import InProcessServer, server
from headrace.testing.oci import GroupReader, OciClients, put, text_of

models = oci.streaming.models


@pytest.fixture
def started() -> Iterator[InProcessServer]:
    with InProcessServer() as running:
        yield running


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def trim_horizon(client: Any, stream: Any) -> str:
    details = models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    value: str = client.create_cursor(stream.id, details).data.value
    return value


def owners(client: Any, stream: Any) -> list[tuple[int, str | None]]:
    found = client.get_group(stream.id, "g").data.reservations
    return [(one.committed_offset, one.reserved_instance) for one in found]


def test_cursors_groups_and_reservations(started: InProcessServer) -> None:
    clients = OciClients(started.http)
    client = clients.stream_client()
    stream = clients.create_stream("s", 2)
    for number in range(40):
        put(client, stream.id, str(number), key=str(number))
    single = trim_horizon(client, stream)
    a, b = (GroupReader(client, stream.id, "g", name) for name in "AB")
    before = [message.offset for message in [*a.get(5), *a.get(5), *b.get(5), *a.get(5), *b.get(5)]]
    assert before
    shown = owners(client, stream)
    assert {owner for _, owner in shown} == {"A", "B"}
    started.restart()

    assert owners(client, stream) == shown
    assert client.get_messages(stream.id, single, limit=5).data
    seen: dict[str, list[int]] = {"A": [], "B": []}
    for name, reader in (("A", a), ("B", b)):
        while messages := reader.get(5):
            seen[name] += [int(message.partition) for message in messages]
    assert all(len(set(partitions)) == 1 for partitions in seen.values())
    assert {name for name in seen if seen[name]} == {"A", "B"}


def test_a_chain_of_gets_goes_on_where_it_was(started: InProcessServer) -> None:
    clients = OciClients(started.http)
    client = clients.stream_client()
    stream = clients.create_stream("s")
    put(client, stream.id, *numbers(1, 30))
    a = GroupReader(client, stream.id, "g", "A")
    assert a.values(10) == numbers(1, 10)
    started.restart()
    assert a.values(10) == numbers(11, 20)
    started.restart()
    assert a.values(10) == numbers(21, 30)
    assert owners(client, stream) == [(19, "A")]


def test_the_timeout_of_a_silent_instance_restarts(started: InProcessServer) -> None:
    clients = OciClients(started.http)
    client = clients.stream_client()
    stream = clients.create_stream("s")
    put(client, stream.id, *numbers(1, 30))
    a, b = (GroupReader(client, stream.id, "g", name) for name in "AB")
    assert a.values(10) == numbers(1, 10)
    started.clock.advance(seconds=20)
    started.restart()
    started.clock.advance(seconds=20)
    assert b.values(10) == []
    started.clock.advance(seconds=11)
    assert b.values(10) == numbers(1, 10)


def test_the_start_of_a_group_is_kept_before_its_first_get(started: InProcessServer) -> None:
    clients = OciClients(started.http)
    client = clients.stream_client()
    stream = clients.create_stream("s")
    put(client, stream.id, "before")
    latest = GroupReader(client, stream.id, "g", start="LATEST")
    put(client, stream.id, "between")
    started.restart()
    put(client, stream.id, "after")

    assert latest.values() == ["between", "after"]


@pytest.mark.crash
def test_nothing_that_was_acknowledged_is_lost_when_the_server_is_killed() -> None:
    with server() as killed:
        clients = OciClients(killed.http)
        client = clients.stream_client()
        stream = clients.create_stream("s")
        reader = GroupReader(client, stream.id, "g", "A")
        put(client, stream.id, *numbers(1, 50))
        assert reader.values(20) == numbers(1, 20)
        assert reader.values(20) == numbers(21, 40)
        put(client, stream.id, *numbers(51, 60))
        killed.kill()
        killed.start()

        assert reader.values(10) == numbers(41, 50)
        assert reader.values(100) == numbers(51, 60)
        found = client.get_messages(stream.id, trim_horizon(client, stream)).data
        assert [text_of(message.value) for message in found] == numbers(1, 60)
