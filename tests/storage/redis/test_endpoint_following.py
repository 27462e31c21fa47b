"""Connections that follow the primary that Sentinels name, and other connections."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer
from tests.harness.waiting import until
from tests.storage.conftest import connected

from headrace.storage.errors import Unreachable
from headrace.storage.logs.replicas import RedisReplicas
from headrace.storage.native.watch import StreamWatcher
from headrace.storage.redis import endpoint
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.endpoint import Place
from headrace.storage.redis.protocol import RespProtocol
from headrace.topics.errors import NotEnoughReplicasAfterAppend


class Sentinels:
    """What Sentinels say, one time after another."""

    def __init__(self, primary: Place) -> None:
        self.primary = primary
        """Response of the Sentinels to new connections."""
        self.named: asyncio.Queue[Place] = asyncio.Queue()

    async def find(self) -> Place:
        return self.primary

    async def names(self) -> AsyncGenerator[Place, None]:
        while True:
            yield await self.named.get()
            self.named.task_done()


@contextlib.contextmanager
def servers(*places: Place) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _, port in places:
            stack.enter_context(RedisServer(options={"port": str(port)}))
        yield


async def port(connection: Connection) -> int:
    """Where a connection is, once it is anywhere."""
    await connection.ready()
    [_, number] = await connection.call("CONFIG", "GET", "port")
    return int(number)


async def test_the_primary_is_left_as_often_as_the_sentinels_name_another(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [("127.0.0.1", port) for port in free_ports(3)]
    first, second, nobody = places
    sentinels = Sentinels(first)
    monkeypatch.setattr(endpoint, "finder", lambda url: (url, sentinels))
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE_S", 0.0)

    async def said(*named: Place) -> None:
        for each in named:
            sentinels.named.put_nowait(each)
        await sentinels.named.join()

    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            await said(first)
            assert (await port(connection), connection.made) == (first[1], 1)
            # Another Sentinel, the first to be asked, does not know of it yet.
            await said(second, second)
            await until(lambda: connection.made == 2)
            assert await port(connection) == second[1]
            # Lost, and back at the one before; and the same way once more.
            await connection.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
            await until(lambda: connection.made == 3)
            assert await port(connection) == first[1]
            await said(first, second)
            await until(lambda: connection.made == 4)
            assert await port(connection) == second[1]
            # The named primary refuses connections: ask the Sentinels again.
            sentinels.primary = second
            await said(nobody)
            await until(lambda: connection.made == 5)
            assert await port(connection) == second[1]


async def test_a_primary_that_is_not_named_is_not_left_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    here, another, nobody = [("127.0.0.1", port) for port in free_ports(3)]
    sentinels = Sentinels(here)
    monkeypatch.setattr(endpoint, "finder", lambda url: (url, sentinels))
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE_S", 600.0)
    with servers(here, another):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            sentinels.named.put_nowait(nobody)
            await until(lambda: connection.made == 2)
            for _ in range(3):
                sentinels.named.put_nowait(nobody)
            await sentinels.named.join()
            assert await connection.call("PING") == b"PONG"
            assert connection.made == 2
            # It is only that one which is left alone.
            sentinels.named.put_nowait(another)
            await until(lambda: connection.made == 3)
            assert await port(connection) == another[1]


def test_who_is_named_again_and_again_is_tried_less_and_less_often() -> None:
    tries, named, another = endpoint.Tries(), ("a", 1), ("b", 2)
    assert [second for second in range(100) if tries.may(named, second)] == [0, 1, 3, 7, 15, 31, 61, 91]
    assert tries.may(another, 99)
    # It was there, but not for long.
    tries.is_there(named, 120)
    assert not tries.may(named, 120.5)
    tries.is_there(named, 121)
    assert [second for second in range(130, 140) if tries.may(named, second)] == [130, 131, 133, 137]


async def test_companions_of_a_connection_go_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outdated Sentinels would make the server wait for the replicas of another server."""
    first, second = [("127.0.0.1", port) for port in free_ports(2)]
    sentinels = Sentinels(first)
    monkeypatch.setattr(endpoint, "finder", lambda url: (url, sentinels))
    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            connection.follow()
            sentinels.named.put_nowait(second)
            await until(lambda: connection.made == 2)
            assert await port(connection) == second[1]
            # What waits for copies, and what waits for entries.
            copies, watcher = RedisReplicas(connection, 60_000), StreamWatcher(connection.url, connection)
            told: asyncio.Queue[object] = asyncio.Queue()
            try:
                copies.confirm("s", 2, -1, told.put_nowait)
                async with asyncio.timeout(60):
                    assert isinstance(await told.get(), NotEnoughReplicasAfterAppend)
                    watcher.watch("s", "0-0", told.put_nowait)
                    await connection.call("XADD", "s", "1-1", "f", "v")
                    assert await told.get() == "1-1"
                assert connection.made == 2
            finally:
                await copies.close()
                await watcher.close()


async def test_companions_of_a_connection_follow_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [("127.0.0.1", port) for port in free_ports(2)]
    sentinels = Sentinels(first)
    monkeypatch.setattr(endpoint, "finder", lambda url: (url, sentinels))
    with servers(first, second):
        async with connected("redis://127.0.0.1") as connection:
            follows = Connection(connection.url, follows=connection)
            connect, places = endpoint.Endpoint.connect, [second]

            async def connect_slowly(self: endpoint.Endpoint, make: Callable[[], RespProtocol]) -> RespProtocol:
                made = await connect(self, make)
                if places:
                    sentinels.primary = places.pop()
                    connection.renew()
                    await until(lambda: connection.made == 2)
                return made

            monkeypatch.setattr(endpoint.Endpoint, "connect", connect_slowly)
            follows.connect_soon()
            assert await port(follows) == second[1]
            assert not places
            await follows.close()


async def test_entries_are_waited_for_where_the_first_connection_fails(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher, told = StreamWatcher(connection.url, connection), asyncio.Event()
    opens, failing = Connection.open, [Unreachable("Redis does not answer")]

    async def open_later(self: Connection) -> None:
        if failing:
            raise failing.pop()
        await opens(self)

    monkeypatch.setattr(Connection, "open", open_later)
    try:
        watcher.watch("s", "0-0", lambda _: told.set())
        await connection.call("XADD", "s", "1-1", "f", "v")
        async with asyncio.timeout(60):
            await told.wait()
    finally:
        await watcher.close()
