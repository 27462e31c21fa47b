"""The Redis servers with the keys: one server, or the primaries of a cluster."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from itertools import chain, starmap
from typing import Final, Protocol

import redis.asyncio
import structlog
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from headrace.aio.retry import Backoff
from headrace.storage.errors import Unreachable, in_the_way, unusable
from headrace.storage.redis.clients import ERRORS, cluster_of
from headrace.storage.redis.connection import ANSWER_S, Call, Connection, Readiness
from headrace.storage.redis.protocol import Reply
from headrace.storage.redis.url import StorageUrl
from headrace.topics.errors import StorageUnavailable

_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 0.5
_MOST_REDIRECTIONS: Final = 5
_log = structlog.get_logger("headrace.storage.redis")


class Shards(Protocol):
    """Connections by key. `Connection` is one server, `ClusterShards` are several."""

    on_lost: list[Callable[[Connection], None]]
    """Called with a lost connection, before its requests fail."""
    on_restored: list[Callable[[], None]]
    """Called after a reconnect."""

    def at(self, key: str | bytes, /) -> Connection:
        """Return the connection to the server of a key, as far as is known."""

    async def ping(self) -> object:
        """Raise StorageUnavailable if a server does not respond."""

    async def readiness(self, within_s: float) -> Readiness:
        """Return the servers' problems: no response in time, or rejected writes.

        Raises StorageUnavailable if none can be read.
        """

    async def close(self) -> None:
        """Close all connections."""


class ClusterShards:
    """Connections to the primaries of a Redis Cluster, by redis-py's topology.

    It is read again after each loss or MOVED, until all primaries respond.

    `Connection.call` follows redirections. Batches do not: their log is recovered on its new shard.
    """

    def __init__(self, url: StorageUrl, admin: redis.asyncio.RedisCluster, prepare: Iterable[bytes]) -> None:
        """Prepare; `open` connects. The caller closes `admin`."""
        self._url = url
        self._admin = admin
        self._prepare = tuple(prepare)
        self._nodes: dict[tuple[str, int], Connection] = {}
        self._guests: dict[tuple[str, int], Connection] = {}
        """Connections to targets of redirections, until the topology includes them or they are lost."""
        self._slots: list[Connection] = []
        self._looking: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._meeting = asyncio.Lock()
        self._closed = False
        self._doubts = 0
        self._untold = ""
        """Reason why the last query of the topology failed, or empty."""
        self.on_lost: list[Callable[[Connection], None]] = []
        self.on_restored: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Connect to all primaries. Raises Unreachable, also for slots without a primary."""
        await self._admin.initialize()
        try:
            for each in self._take():
                await each.open()
        except BaseException:
            await self.close()
            raise

    def at(self, key: str | bytes, /) -> Connection:
        """Return the connection to the primary of a key, as far as is known."""
        return self._slots[slot_of(key)]

    def _places(self) -> list[tuple[str, int]]:
        nodes = map(self._admin.nodes_manager.get_node_from_slot, range(REDIS_CLUSTER_HASH_SLOTS))
        return [(str(node.host), int(node.port)) for node in nodes]

    def _take(self) -> list[Connection]:
        new: list[Connection] = []
        nodes: dict[tuple[str, int], Connection] = {}
        slots: list[Connection] = []
        for place in self._places():
            connection = nodes.get(place) or self._nodes.get(place) or self._guests.pop(place, None)
            if connection is None:
                connection = self._made(place)
                new.append(connection)
            nodes[place] = connection
            slots.append(connection)
        for place, connection in self._nodes.items():
            if place not in nodes:
                self._end(connection)
        self._nodes, self._slots = nodes, slots
        for place, guest in tuple(self._guests.items()):
            if not guest.connected:
                self._end(self._guests.pop(place))
        return new

    def _made(self, place: tuple[str, int]) -> Connection:
        connection = Connection(self._url.at(*place), self._prepare, standing=True)
        connection.on_lost.append(self._lost)
        connection.on_restored.append(self._restored)
        connection.on_misplaced = self._look_soon
        connection.redirected = self._redirected
        connection.patience_s = ANSWER_S
        return connection

    def _end(self, connection: Connection) -> None:
        for listener in self.on_lost:
            listener(connection)
        connection.on_lost.clear()
        task = asyncio.get_running_loop().create_task(connection.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _lost(self, connection: Connection) -> None:
        for listener in self.on_lost:
            listener(connection)
        self._look_soon()

    def _restored(self) -> None:
        for listener in self.on_restored:
            listener()

    def _look_soon(self) -> None:
        self._doubts += 1
        if not self._closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="topology")

    async def _look(self) -> None:
        """Repeat until the topology is undoubted and all primaries respond."""
        backoff = Backoff(_FIRST_LOOK_S, _LAST_LOOK_S)
        while True:
            doubts = self._doubts
            try:
                await self._admin.nodes_manager.initialize()
                # The old connections serve requests in the meantime.
                for place in set(self._places()):
                    with contextlib.suppress(Unreachable):
                        await self._known(*place)
                for each in self._take():
                    each.connect_soon()
            except ERRORS as error:
                self._untold = f"the cluster {in_the_way(error, self._url.url)[0]}"
                _log.warning("the Redis Cluster does not return its topology", reason=self._untold)
            else:
                self._untold = ""
                if doubts == self._doubts and all(each.connected for each in self._nodes.values()):
                    _log.info(
                        "Redis Cluster topology changed",
                        primaries=", ".join(f"{host}:{port}" for host, port in self._nodes),
                    )
                    return
            await backoff.pause()

    async def _redirected(self, told: str, call: Call) -> Reply:
        for _ in range(_MOST_REDIRECTIONS):
            word, _, rest = told.partition(" ")
            host, _, port = rest.partition(" ")[2].rpartition(":")
            try:
                connection = await self._known(host, int(port))
            except (ValueError, Unreachable) as error:
                self._look_soon()
                raise StorageUnavailable(f"the cluster has moved the key: {told}: {error}") from None
            reply = await connection.ask(call, asking=word == "ASK")
            if not connection.is_redirection(reply):
                return reply
            told = str(reply)
        raise StorageUnavailable(f"the cluster redirects in a circle: {told}")

    async def _known(self, host: str, port: int) -> Connection:
        place = host, port
        async with self._meeting:
            connection = self._nodes.get(place) or self._guests.get(place)
            if connection is None:
                connection = self._made(place)
                await connection.open()
                if self._closed:
                    await connection.close()
                    raise Unreachable("the storage is closed")
                self._guests[place] = connection
        return connection

    async def ping(self) -> None:
        """Raise StorageUnavailable if a primary does not respond."""
        await asyncio.gather(*(each.ping() for each in self._nodes.values()))

    async def readiness(self, within_s: float) -> Readiness:
        """See `Shards`."""

        async def of(place: tuple[str, int], connection: Connection) -> Readiness:
            try:
                found = await connection.readiness(within_s)
            except StorageUnavailable as error:
                silent.append(place)
                found = Readiness((str(error),), writable=False)
            return Readiness(tuple(f"{place[0]}:{place[1]}: {each}" for each in found.problems), found.writable)

        silent: list[tuple[str, int]] = []
        asked = tuple(self._nodes.items())
        every = await asyncio.gather(*starmap(of, asked))
        problems = tuple(chain.from_iterable(each.problems for each in every))
        if len(silent) == len(asked):
            raise StorageUnavailable("; ".join(problems))
        if self._untold:
            problems = (self._untold, *problems)
        return Readiness(problems, any(each.writable for each in every))

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        every = (*self._nodes.values(), *self._guests.values())
        await asyncio.gather(*(each.close() for each in every), *self._ending)


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    return key_slot(key.encode() if isinstance(key, str) else key)


async def connected(url: str, admin: redis.asyncio.Redis, prepare: Iterable[bytes]) -> Shards:
    """Connect to all servers of a storage URL. Raises Unreachable."""
    cluster = cluster_of(admin)
    if cluster is not None:
        shards = ClusterShards(StorageUrl.parse(url), cluster, prepare)
        try:
            await shards.open()
        except ERRORS as error:
            raise unusable(error, url) from None
        return shards
    connection = Connection(url, prepare, standing=True)
    await connection.open()
    connection.follow()
    return connection
