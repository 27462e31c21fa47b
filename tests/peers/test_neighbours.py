"""Neighbours notice that a broker's process has ended: its connection is closed, and its port refuses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from headrace.membership.view import Member, View
from headrace.peers.connections import Connections
from headrace.peers.neighbours import Neighbours, after


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

    async def open(self, port: int = 0) -> Member:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        return member(2, self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted.put_nowait((reader, writer))

    def end(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def neighbours() -> AsyncIterator[tuple[Neighbours, asyncio.Queue[Member]]]:
    ended: asyncio.Queue[Member] = asyncio.Queue()
    watching = Neighbours(1, Connections(lambda: pytest.fail("nobody serves HTTPS")), ended.put_nowait)
    try:
        yield watching, ended
    finally:
        await watching.close()


async def test_one_that_ends_is_told_of_once() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        await listener.accepted.get()
        listener.end()
        assert await ended.get() == other
        assert ended.empty()


async def test_one_that_closes_connections_and_takes_others_is_alive() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        for _ in range(3):
            (await listener.accepted.get())[1].close()
        await listener.accepted.get()
        assert ended.empty()
        listener.end()


async def test_where_there_never_was_a_connection_nothing_is_known() -> None:
    listener = Listener()
    other = await listener.open()
    listener.end()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        again = Listener()
        await again.open(int(other.http.rpartition(":")[2]))
        await again.accepted.get()
        assert ended.empty()
        again.end()
        assert await ended.get() == other


async def test_whoever_is_out_of_the_view_is_not_watched() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        reader, _ = await listener.accepted.get()
        watching.go_by(View(8, (member(1),)))
        assert await reader.read() == b""
        assert ended.empty()
    listener.end()


async def test_a_view_that_comes_after_the_end_is_not_gone_by() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, _):
        await watching.close()
        watching.go_by(View(7, (member(1), other)))
        assert not [task for task in asyncio.all_tasks() if task.get_name() == f"broker {other.node_id}"]
    listener.end()


async def answer(listener: Listener) -> None:
    """Answer one request as a broker does."""
    reader, writer = await listener.accepted.get()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /livez HTTP/1.1\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
    await writer.drain()


async def test_who_asks_for_leaders_waits_until_the_neighbours_have_answered() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        await listener.accepted.get()
        asked = asyncio.ensure_future(watching.settled())
        await answer(listener)
        await asked
        assert ended.empty()
        listener.end()


async def test_who_asks_while_a_neighbour_ends_waits_for_the_view_without_it() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        await listener.accepted.get()
        asked = asyncio.ensure_future(watching.settled())
        # The connection that is watched is closed later than the one that brought the request.
        (await listener.accepted.get())[1].transport.abort()
        listener.end()
        await ended.get()
        assert not asked.done()
        watching.go_by(View(8, (member(1),)))
        await asked


async def test_nobody_waits_long_for_a_view_without_the_one_that_ended() -> None:
    listener = Listener()
    other = await listener.open()
    async with neighbours() as (watching, ended):
        watching.go_by(View(7, (member(1), other)))
        await listener.accepted.get()
        listener.end()
        await ended.get()
        await watching.settled()


@pytest.mark.parametrize(
    ("node_id", "others"), [(1, [2, 3]), (2, [3, 4]), (3, [4, 1]), (4, [1, 2]), (9, [1, 2])], ids=str
)
def test_everybody_watches_the_next_ones_in_the_ring(node_id: int, others: list[int]) -> None:
    view = View(7, tuple(member(each) for each in (1, 2, 3, 4)))
    assert [each.node_id for each in after(node_id, view)] == others
