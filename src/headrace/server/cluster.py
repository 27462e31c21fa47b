"""Puts this server among the other brokers of its Redis: the view, what follows from it, and what they change."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from uuid import uuid4

import structlog

from headrace.broker.brokers.membership import Membership, NodeIdTaken
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.metadata import Documents, MetadataListener
from headrace.broker.runtime.clock import Clock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.connections import Connections, Tls
from headrace.http.peers.neighbours import Neighbours
from headrace.membership.view import Member, View
from headrace.server.config import StartError
from headrace.server.listeners import reached_host
from headrace.storage.brokers import RedisMembership
from headrace.storage.errors import unusable
from headrace.storage.redis.clients import asynchronous
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import StorageUnavailable

_log = structlog.get_logger("headrace.server")


async def _nothing_to_follow() -> bool:
    return False


class Brokers:
    """This server's part."""

    def __init__(
        self,
        storage: RedisMembership,
        membership: Membership,
        ownership: Ownership,
        neighbours: Neighbours,
        last: str,
    ) -> None:
        """Use `joined`. `last`: a change from before anything is loaded."""
        self.storage = storage
        self.ownership = ownership
        self._membership = membership
        self._neighbours = neighbours
        self._clusters: VirtualClusters | None = None
        self._follower: MetadataListener | None = None
        self._last = last
        membership.on_last_change = self._last_change

    def _last_change(self, change_id: str) -> None:
        if self._follower is None:
            return
        self._follower.last_is(change_id)

    async def follow(self, clusters: VirtualClusters, documents: Documents) -> None:
        """From now on go by each view, and take over what other brokers change.

        Args:
            clusters: loaded, by the view that was joined.
            documents: loads listeners' documents of these kinds; of all kinds for none.
        """
        clusters.learn_leaders(await self.storage.leaders())
        self._clusters = clusters
        self._follower = MetadataListener(
            self.storage, clusters, documents, self._membership.wake, settled=self._neighbours.settled
        )
        self._follower.start(self._last)
        clusters.leaders.current = self._follower.current
        self._membership.on_view = self._adopt
        view = self._membership.view
        if view is not None:
            self._neighbours.go_by(view)
            if view.number != self.ownership.number:
                self._adopt(view, self._membership.is_member)

    def _adopt(self, view: View, inside: bool) -> None:
        assert self._clusters is not None
        assert self._follower is not None
        if inside and not self.ownership.inside:
            # What was changed meanwhile may have been dropped from the changes by now.
            self._follower.load_everything()
        self.ownership.adopt(view, inside=inside)
        self._clusters.view_changed()
        self._neighbours.go_by(view)

    async def catch_up(self) -> None:
        """Take over all that other brokers have changed by now, or as much as a few seconds allow."""
        await self.catching_up()()

    def catching_up(self) -> Callable[[], Awaitable[bool]]:
        """What takes over, later, all that other brokers have changed by then; see `oci.app.CatchingUp`."""
        if self._follower is None:
            return _nothing_to_follow
        return partial(self._follower.catch_up, self._follower.taken)

    async def hand_over(self, *, leave: bool) -> None:
        """Take nothing over any more; `leave`: let the others have what is this server's, before it stops answering."""
        await self.stop_following()
        if leave and self.ownership.others and self._clusters is not None:
            await self._clusters.hand_over()
            await self._membership.leave()

    async def stop_following(self) -> None:
        """Stop following other brokers' changes."""
        if self._follower is not None:
            await self._follower.stop()
        await self._neighbours.close()


def endpoints(advertised: Mapping[str, tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Name, host and port of each Kafka listener, as the other brokers tell their clients."""
    return [(name, reached_host(name, host), port) for name, (host, port) in advertised.items()]


def _member(node_id: int, advertised: Mapping[str, tuple[str, int]], http: str) -> Member:
    """This server, as the others are to know it."""
    told = endpoints(advertised)
    _, host, port = told[0]
    return Member(
        node_id=node_id,
        incarnation=uuid4().hex[:16],
        process=f"pid {os.getpid()} on {socket.gethostname()}",
        host=host,
        port=port,
        endpoints=tuple(told) if len(told) > 1 else (),
        http=http,
    )


async def _first_view(membership: Membership, url: str) -> View:
    """The view that this server is in once it has joined; `url`: of the Redis. Raises StartError."""
    try:
        return await membership.join(_log.warning)
    except NodeIdTaken as error:
        raise StartError(
            f"{error}; stop that one, or give this one another id (--set node.id=N) or another Redis (--redis)"
        ) from None
    except StorageUnavailable as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise StartError(str(unusable(cause, url))) from None


@contextlib.asynccontextmanager
async def joined(
    storage: RedisStorage,
    url: str,
    settings: BrokerSettings,
    clock: Clock,
    advertised: Mapping[str, tuple[str, int]],
    http: str,
    tls: Tls,
    lost: Callable[[str], None],
) -> AsyncIterator[Brokers]:
    """This server in the view of its keyspace, until the end of the context.

    Args:
        storage: gets the number of each view.
        url: of the same Redis.
        settings: `node.id` and how long a broker may be silent.
        clock: tells how long.
        advertised: where the clients of each Kafka listener reach this server, the first listener first.
        http: where the other brokers reach its HTTP listener, a URL.
        tls: what those that serve HTTPS are reached with.
        lost: called with why this server can be no member any more.

    Raises:
        StartError: another server has this one's `node.id` and is alive, or Redis does not answer.
    """
    client = storage.take_along(asynchronous(url))
    beside = RedisMembership(client, storage.fence)
    me = _member(settings.node_id, advertised, http)
    membership = Membership(
        beside,
        me,
        clock,
        session_ms=settings.broker_session_timeout_ms,
        interval_ms=settings.broker_heartbeat_interval_ms,
    )
    membership.on_lost = lost
    ownership = Ownership(settings.node_id)
    ownership.certain = lambda: membership.certain
    try:
        ownership.adopt(await _first_view(membership, url), inside=True)
        membership.start()
        storage.fence.hurry = membership.wake
        neighbours = Neighbours(me.node_id, Connections(tls), membership.ended)
        brokers = Brokers(beside, membership, ownership, neighbours, await beside.last_change())
        try:
            yield brokers
        finally:
            await brokers.stop_following()
            await membership.leave()
    finally:
        await client.aclose()
