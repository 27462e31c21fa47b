"""redis-py's clients for a storage URL: of a single server, of a Redis Cluster, or of the primary that Sentinels name.

A cluster's client routes each command by its key, follows what has moved and asks for the topology by itself. What both
kinds are asked here they have in common, so callers know one type.
"""

from collections.abc import Sequence
from typing import Any, Final, cast

import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from headrace.storage.redis.sentinel_query import AsyncSentinels, Sentinels
from headrace.storage.redis.url import Kind, StorageUrl

ERRORS: Final = (RedisError, RedisClusterException, OSError)
"""What a client raises where Redis does not answer or refuses. redis-py's errors of a cluster are no RedisError."""


_SENTINEL_S: Final = 2.0
_MOST_RANGES: Final = 3
_NODE_S, _NODE_CONNECT_S = 5.0, 1.0


class PrimaryUnavailable(RedisError):
    """A primary of a cluster does not answer, though the cluster has told of it."""

    def __init__(self, node: str, slots: Sequence[range], reason: str) -> None:
        """Say which.

        Args:
            node: its host and port.
            slots: those that are its.
            reason: what asking it has led to.
        """
        some = [f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in slots[:_MOST_RANGES]]
        of = ", ".join([*some, *(["more"] if len(slots) > _MOST_RANGES else [])])
        super().__init__(f"{node}, which has {sum(map(len, slots))} slots ({of}): {reason.rstrip('.')}")


def _options(found: StorageUrl, host: str, port: int) -> dict[str, Any]:
    """What the URL says of each node, as arguments of a client."""
    options: dict[str, Any] = dict(parse_url(found.at(host, port)))
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    for name in ("host", "port"):
        options.pop(name, None)
    return options


def _of_sentinels(found: StorageUrl) -> dict[str, Any]:
    """Sentinels have a login of their own; TLS is theirs as it is the servers'."""
    secure = {name: value for name, value in _options(found, *found.nodes[0]).items() if name.startswith("ssl")}
    return {
        "socket_timeout": _SENTINEL_S,
        "socket_connect_timeout": _SENTINEL_S,
        **secure,
        **dict(found.sentinel_login),
    }


def sentinels(found: StorageUrl) -> redis.asyncio.Sentinel:
    """The Sentinels that a URL names, to be asked in an event loop."""
    # One that does not answer is passed over: the next one knows as much.
    kwargs = _of_sentinels(found) | {"retry": AsyncRetry(NoBackoff(), 0)}
    return AsyncSentinels(found.nodes, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]


class _AsyncCluster(redis.asyncio.RedisCluster):
    """Finds the slot of XREAD by itself: redis-py asks one node for it, the same for ever, also once that is dead."""

    async def _determine_slot(self, command: str, *args: Any) -> int:
        if command.upper() == "XREAD":
            streams = next(place for place, each in enumerate(args) if each in ("STREAMS", b"STREAMS"))
            return int(self.keyslot(args[streams + 1]))
        return int(await super()._determine_slot(command, *args))


def asynchronous(url: str) -> redis.asyncio.Redis:
    """A client for use in an event loop, connected with the first command. Raises ValueError for a URL that is none."""
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return redis.asyncio.from_url(url)
    options = _options(found, *found.nodes[0])
    if found.kind is Kind.SENTINEL:
        return cast("redis.asyncio.Redis", sentinels(found).master_for(found.service, **options))
    options.pop("db", None)
    # A primary that is gone without a word must not keep the others from being asked.
    options = {"socket_timeout": _NODE_S, "socket_connect_timeout": _NODE_CONNECT_S} | options
    nodes = [AsyncClusterNode(host, port) for host, port in found.nodes]
    return cast("redis.asyncio.Redis", _AsyncCluster(startup_nodes=nodes, **options))


def blocking(url: str, **options: Any) -> redis.Redis:
    """A client for threads, connected with the first command, a cluster's at once.

    Args:
        url: where the storage is.
        options: further arguments of redis-py's clients, such as `socket_timeout`.

    Raises:
        ValueError: the URL is none; what `ERRORS` names: there is no such cluster.
    """
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return redis.Redis.from_url(url, **options)
    options = _options(found, *found.nodes[0]) | options
    if found.kind is Kind.SENTINEL:
        kwargs = _of_sentinels(found) | {"retry": Retry(NoBackoff(), 0)}
        asked: Any = Sentinels(found.nodes, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]
        return cast("redis.Redis", asked.master_for(found.service, **options))
    options.pop("db", None)
    nodes = [ClusterNode(host, port) for host, port in found.nodes]  # type: ignore[no-untyped-call]
    return cast("redis.Redis", redis.RedisCluster(startup_nodes=nodes, **options))


def stream_entries(client: redis.Redis, stream: str, first: str, last: str, count: int) -> list[Any]:
    """XRANGE by a blocking client of either kind: (id, [field, value, field, ...]) as Redis tells them.

    redis-py makes a dictionary of each entry, which costs time and loses a field that is there twice. A cluster's
    client asks another one for each node, which comes and goes with the topology; where one is new it is asked again.

    Raises:
        What `ERRORS` names.
    """
    while True:
        asked = [client]
        if isinstance(client, redis.RedisCluster):
            asked = [client.get_redis_connection(node) for node in client.get_nodes()]
        for each in asked:
            each.set_response_callback("XRANGE", _as_it_is)
        found: Any = client.xrange(stream, first, last, count=count)
        if not found or not isinstance(found[0][1], dict):
            return list(found)


def _as_it_is(answer: Any, **_: Any) -> Any:
    return answer


class Primary:
    """One primary of a cluster, or the one server there is: asked what has no key."""

    def __init__(self, client: redis.asyncio.Redis, node: AsyncClusterNode | None = None) -> None:
        """Say which.

        Args:
            client: that knows it.
            node: of a cluster; None: the client has no other.
        """
        self._client = client
        self._node = node
        self.name = "" if node is None else str(node.name)
        """Host and port where it is one of a cluster, else empty."""

    async def ask(self, method: str, *arguments: Any) -> Any:
        """What a command answers.

        Args:
            method: the client's method for the command.
            arguments: of the command.

        Raises:
            What `ERRORS` names; PrimaryUnavailable where one of a cluster does not answer.
        """
        if self._node is None:
            return await getattr(self._client, method)(*arguments)
        try:
            return await getattr(self._client, method)(*arguments, target_nodes=self._node)
        except RedisError as error:
            cluster = cluster_of(self._client)
            assert cluster is not None
            raise _named(error, cluster, self._node) from None


async def primaries(client: redis.asyncio.Redis) -> list[Primary]:
    """Those of a cluster as it tells of them now, or the one server there is. Raises as `Primary.ask`."""
    cluster = cluster_of(client)
    if cluster is None:
        return [Primary(client)]
    return [Primary(client, node) for node in await _primaries(cluster)]


async def on_primaries(client: redis.asyncio.Redis, method: str, *arguments: str) -> list[Any]:
    """What a command without a key answers on each of `primaries`. Arguments, errors: as for `Primary.ask`."""
    return [await each.ask(method, *arguments) for each in await primaries(client)]


async def _primaries(cluster: redis.asyncio.RedisCluster) -> list[AsyncClusterNode]:
    """Those that the cluster tells of. Raises as `on_primaries`."""
    try:
        await cluster.initialize()
    except RedisError as error:
        # It knows them by then, and has asked one of them for its commands, which it does not name.
        for node in {nodes[0].name: nodes[0] for nodes in cluster.nodes_manager.slots_cache.values()}.values():
            try:
                await node.execute_command("PING")
            except RedisError as its_own:
                raise _named(its_own, cluster, node) from None
        raise error from None
    return cluster.get_primaries()


def _named(error: RedisError, cluster: redis.asyncio.RedisCluster, node: AsyncClusterNode) -> RedisError:
    """What asking a node has led to, with that node where it did not answer."""
    # What derives from these two is an answer.
    if type(error) not in (RedisConnectionError, RedisTimeoutError):
        return error
    return PrimaryUnavailable(node.name, _slots_of(cluster, node.name), str(error))


def _slots_of(cluster: redis.asyncio.RedisCluster, primary: str) -> list[range]:
    """Which slots a primary has, as far as the client knows."""
    found: list[range] = []
    for slot, nodes in sorted(cluster.nodes_manager.slots_cache.items()):
        if nodes[0].name != primary:
            continue
        if found and found[-1].stop == slot:
            found[-1] = range(found[-1].start, slot + 1)
        else:
            found.append(range(slot, slot + 1))
    return found


def cluster_of(client: object) -> redis.asyncio.RedisCluster | None:
    """A client as what it is where it is a cluster's, else None."""
    return client if isinstance(client, redis.asyncio.RedisCluster) else None
