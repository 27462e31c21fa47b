"""A Kafka listener with authorization that accepts every login."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import redis.asyncio

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.logins import Admitted
from headrace.broker.runtime.clock import SystemClock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.kafka.server.listener import KafkaListener
from headrace.protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from headrace.sasl.listener import Plain
from headrace.security.access.acls import Acl, AclFilter
from headrace.security.access.principal import Principal
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import RedisStorage
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire

T = TypeVar("T")
ROOT = "root"
ON = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": f"User:{ROOT}"}


class Everybody:
    """Accepts every user name."""

    required = False

    def __init__(self, clusters: VirtualClusters) -> None:
        self.mechanisms: tuple[str, ...] = ("PLAIN",)
        self._clusters = clusters

    def begin(self, mechanism: str) -> Plain:
        assert mechanism == "PLAIN"
        return Plain(self.admit)

    async def refused(self) -> None:
        pass

    async def admit(self, username: str, password: str) -> Admitted:
        return Admitted(Principal(username), self._clusters.get(password))


class Guarded:
    """The server, in a thread of its own."""

    def __init__(self, clusters: VirtualClusters, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.clusters = clusters
        self.address = address
        self._loop = loop

    def run(self, change: Coroutine[Any, Any, T]) -> T:
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(change, self._loop).result(60)

    def allow(self, *acls: Acl, cluster: str = "default") -> None:
        """Add access rules."""
        self.run(self._allow(acls, cluster))

    async def _allow(self, acls: Sequence[Acl], cluster: str) -> None:
        await self.clusters.access.create(cluster, acls, self.clusters.lane.pace())

    def rules(self, wanted: AclFilter) -> list[Acl]:
        """The access rules that a filter means."""
        return self.run(self._rules(wanted))

    async def _rules(self, wanted: AclFilter) -> list[Acl]:
        return await self.clusters.access.acls("default", wanted, self.clusters.lane.pace())

    def forbid(self, wanted: AclFilter) -> None:
        """Take access rules away."""
        self.run(self._forbid(wanted))

    async def _forbid(self, wanted: AclFilter) -> None:
        await self.clusters.access.delete("default", [wanted], self.clusters.lane.pace())

    def connect(self, name: str | None, cluster: str = "default") -> Wire:
        """Return a connection of a user; None: without a login."""
        wire = Wire(self.address)
        if name is not None:
            wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            answer = wire.ask(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{cluster}".encode()), 2)
            assert answer.error_code == 0, answer
        return wire


@contextlib.asynccontextmanager
async def _opened(
    url: str, given: dict[str, str], clusters: Iterable[str]
) -> AsyncIterator[tuple[VirtualClusters, str]]:
    async with contextlib.AsyncExitStack() as stack:
        admin = redis.asyncio.from_url(url)
        stack.push_async_callback(admin.aclose)
        storage = await RedisStorage.open(url, admin, 1)
        stack.push_async_callback(storage.close)
        made = VirtualClusters(
            storage,
            BrokerSettings.of(given),
            SystemClock(),
            cluster_id="guarded",
            stream_of=lambda cluster, *place: Keyspace(cluster=cluster).stream(*place),
        )
        await made.start()
        stack.push_async_callback(made.stop)
        for name in clusters:
            await made.create(name, {})
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        stack.callback(bound.close)
        host, port = bound.getsockname()
        listener = KafkaListener(made.default, max_request_bytes=4 << 20, logins=Everybody(made))
        made.default.advertised[listener.name] = (host, port)
        await listener.start(bound)
        stack.push_async_callback(listener.stop)
        yield made, f"{host}:{port}"


@contextlib.contextmanager
def guarded(clusters: Iterable[str] = (), redis_url: str | None = None, **given: str) -> Iterator[Guarded]:
    """A server with access rules, of which there are none yet; over an empty Redis of its own unless one is given."""
    ready = threading.Event()
    found: list[Guarded] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve(url: str) -> None:
        settings = ON | {name.replace("_", "."): text for name, text in given.items()}
        async with _opened(url, settings, clusters) as (made, address):
            found.append(Guarded(made, address, loop))
            ready.set()
            await stop.wait()

    with contextlib.ExitStack() as stack:
        url = redis_url or stack.enter_context(RedisServer()).url
        thread = threading.Thread(target=lambda: loop.run_until_complete(serve(url)))
        thread.start()
        assert ready.wait(60)
        try:
            yield found[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(60)
            loop.close()
