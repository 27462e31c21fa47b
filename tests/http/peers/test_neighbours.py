"""Neighbours notice that a broker's process has ended: its connection is closed, and its port refuses."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.http.peers.connections import Connections
from headrace.http.peers.neighbours import Neighbours, after
from headrace.membership.view import Member, View


def member(node_id: int, port: int = 1) -> Member:
    return Member(
        node_id=node_id,
        incarnation=f"{node_id}.0",
        process="pid 1",
        host="127.0.0.1",
        port=9092,
        http=f"http://127.0.0.1:{port}",
    )


class Listener:
    """Of a broker that says nothing."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.member = member(2, self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted.put_nowait((reader, writer))

    def end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    """Of the other broker."""
    opened = Listener()
    await opened.open()
    yield opened
    opened.end()


@pytest.fixture
def ended() -> "asyncio.Queue[Member]":
    """Brokers that were reported as ended."""
    return asyncio.Queue()


@pytest.fixture
async def watching(ended: "asyncio.Queue[Member]") -> AsyncIterator[Neighbours]:
    made = Neighbours(1, Connections(lambda: pytest.fail("nobody serves HTTPS")), ended.put_nowait)
    yield made
    await made.close()


@pytest.fixture
async def watched(listener: Listener, watching: Neighbours) -> asyncio.StreamReader:
    """The other broker's end of the connection by which it is watched."""
    watching.go_by(View(7, (member(1), listener.member)))
    return (await listener.accepted.get())[0]


@pytest.mark.usefixtures("watched")
async def test_an_ended_neighbor_is_reported_once(listener: Listener, ended: "asyncio.Queue[Member]") -> None:
    listener.end()
    assert await ended.get() == listener.member
    assert ended.empty()


async def test_one_that_closes_connections_and_takes_others_is_alive(
    listener: Listener, watching: Neighbours, ended: "asyncio.Queue[Member]"
) -> None:
    watching.go_by(View(7, (member(1), listener.member)))
    for _ in range(3):
        (await listener.accepted.get())[1].close()
    await listener.accepted.get()
    assert ended.empty()


async def test_where_there_never_was_a_connection_nothing_is_known(
    listener: Listener, watching: Neighbours, ended: "asyncio.Queue[Member]"
) -> None:
    listener.end()
    watching.go_by(View(7, (member(1), listener.member)))
    again = Listener()
    await again.open(int(listener.member.http.rpartition(":")[2]))
    await again.accepted.get()
    assert ended.empty()
    again.end()
    assert await ended.get() == listener.member


async def test_brokers_outside_the_membership_are_not_watched(
    watching: Neighbours, watched: asyncio.StreamReader, ended: "asyncio.Queue[Member]"
) -> None:
    watching.go_by(View(8, (member(1),)))
    assert await watched.read() == b""
    assert ended.empty()


async def test_a_view_that_comes_after_the_end_is_not_gone_by(listener: Listener, watching: Neighbours) -> None:
    await watching.close()
    watching.go_by(View(7, (member(1), listener.member)))
    assert not [task for task in asyncio.all_tasks() if task.get_name() == f"broker {listener.member.node_id}"]


async def answer(listener: Listener) -> None:
    """Answer one request as a broker does."""
    reader, writer = await listener.accepted.get()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /livez HTTP/1.1\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
    await writer.drain()


@pytest.mark.usefixtures("watched")
async def test_who_asks_for_leaders_waits_until_the_neighbours_have_answered(
    listener: Listener, watching: Neighbours, ended: "asyncio.Queue[Member]"
) -> None:
    asked = asyncio.ensure_future(watching.settled())
    await answer(listener)
    await asked
    assert ended.empty()


@pytest.mark.usefixtures("watched")
async def test_who_asks_while_a_neighbour_ends_waits_for_the_view_without_it(
    listener: Listener, watching: Neighbours, ended: "asyncio.Queue[Member]"
) -> None:
    asked = asyncio.ensure_future(watching.settled())
    # The connection that is watched is closed later than the one that brought the request.
    (await listener.accepted.get())[1].transport.abort()
    listener.end()
    await ended.get()
    assert not asked.done()
    watching.go_by(View(8, (member(1),)))
    await asked


@pytest.mark.usefixtures("watched")
async def test_the_wait_for_a_membership_without_the_ended_broker_is_short(
    listener: Listener, watching: Neighbours, ended: "asyncio.Queue[Member]"
) -> None:
    listener.end()
    await ended.get()
    await watching.settled()


@pytest.mark.parametrize(
    ("node_id", "others"), [(1, [2, 3]), (2, [3, 4]), (3, [4, 1]), (4, [1, 2]), (9, [1, 2])], ids=str
)
def test_all_brokers_watch_the_next_ones_in_the_ring(node_id: int, others: list[int]) -> None:
    view = View(7, tuple(member(each) for each in (1, 2, 3, 4)))
    assert [each.node_id for each in after(node_id, view)] == others
