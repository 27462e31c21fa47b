"""This server's connection with the other brokers of its Redis."""

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
from headrace.broker.metadata_listener import Documents, MetadataListener
from headrace.broker.runtime.clock import Clock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.peers.connections import Connections, Tls
from headrace.http.peers.neighbours import Neighbours
from headrace.membership.view import FEATURES, Member, View
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
    """This server's part in the cluster."""

    def __init__(
        self,
        storage: RedisMembership,
        membership: Membership,
        ownership: Ownership,
        neighbours: Neighbours,
        last: str,
    ) -> None:
        """`last`: id of a metadata change from before the load."""
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
        """Apply changes of membership and metadata from now on.

        `clusters` are loaded under the current membership. `documents` loads listeners' documents of the given kinds,
        or all.
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
            # Changes made while this broker was out of the cluster may have been trimmed.
            self._follower.load_everything()
        self.ownership.adopt(view, inside=inside)
        self._clusters.view_changed()
        self._neighbours.go_by(view)

    async def catch_up(self) -> None:
        """Apply all changes that other brokers have made so far; gives up after a few seconds."""
        await self.catching_up()()

    def catching_up(self) -> Callable[[], Awaitable[bool]]:
        """Return a function that later applies the changes made until now; see `oci.app.CatchingUp`."""
        if self._follower is None:
            return _nothing_to_follow
        return partial(self._follower.catch_up, self._follower.taken)

    async def is_current(self) -> bool:
        """Apply the changes made until now. Return whether all are applied. Raises StorageUnavailable."""
        return self._follower is not None and await self._follower.is_current()

    async def hand_over(self, *, leave: bool) -> None:
        """Stop following changes; with `leave`, hand over partitions and leave the cluster."""
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
    """Return name, host and port of advertised listeners."""
    return [(name, reached_host(name, host), port) for name, (host, port) in advertised.items()]


def _member(node_id: int, advertised: Mapping[str, tuple[str, int]], http: str) -> Member:
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
        features=FEATURES,
    )


async def _first_view(membership: Membership, url: str) -> View:
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
    """Join the cluster of the keyspace, and leave it at the end of the context.

    `storage` is fenced by the broker epoch; `url` is of the same Redis. `clock` measures the session timeout. `http` is
    for other brokers, and `tls` for requests to them. `lost` is called with the reason when the membership ends.

    Raises:
        StartError: a live server has the same `node.id`, or Redis does not answer.
    """
    client = storage.take_along(asynchronous(url))
    stored = RedisMembership(client, storage.fence)
    me = _member(settings.node_id, advertised, http)
    membership = Membership(
        stored,
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
        brokers = Brokers(stored, membership, ownership, neighbours, await stored.last_change())
        try:
            yield brokers
        finally:
            await brokers.stop_following()
            await membership.leave()
    finally:
        await client.aclose()
