"""redis-py clients for a storage URL: for a server, a Redis Cluster, or the primary that Sentinels name.

A cluster's client routes commands by key and follows redirections. Callers use one type for both.
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
"""Errors if Redis does not respond or rejects a command. redis-py's cluster errors are no RedisError."""


_SENTINEL_S: Final = 2.0
_MOST_RANGES: Final = 3
_NODE_S, _NODE_CONNECT_S = 5.0, 1.0


class PrimaryUnavailable(RedisError):
    """A primary of a cluster does not respond."""

    def __init__(self, node: str, slots: Sequence[range], reason: str) -> None:
        """Create the message. `slots` are those of the node."""
        some = [f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in slots[:_MOST_RANGES]]
        of = ", ".join([*some, *(["more"] if len(slots) > _MOST_RANGES else [])])
        super().__init__(f"{node}, which has {sum(map(len, slots))} slots ({of}): {reason.rstrip('.')}")


def _options(found: StorageUrl, host: str, port: int) -> dict[str, Any]:
    options: dict[str, Any] = dict(parse_url(found.at(host, port)))
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    for name in ("host", "port"):
        options.pop(name, None)
    return options


def _of_sentinels(found: StorageUrl) -> dict[str, Any]:
    """Sentinels have their own login, and the servers' TLS options."""
    secure = {name: value for name, value in _options(found, *found.nodes[0]).items() if name.startswith("ssl")}
    return {
        "socket_timeout": _SENTINEL_S,
        "socket_connect_timeout": _SENTINEL_S,
        **secure,
        **dict(found.sentinel_login),
    }


def sentinels(found: StorageUrl) -> redis.asyncio.Sentinel:
    """Return the Sentinels of a URL, for an event loop."""
    # The next Sentinel knows as much.
    kwargs = _of_sentinels(found) | {"retry": AsyncRetry(NoBackoff(), 0)}
    return AsyncSentinels(found.nodes, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]


class _AsyncCluster(redis.asyncio.RedisCluster):
    """redis-py always asks the same node for the slot of XREAD, even a dead one."""

    async def _determine_slot(self, command: str, *args: Any) -> int:
        if command.upper() == "XREAD":
            streams = next(place for place, each in enumerate(args) if each in ("STREAMS", b"STREAMS"))
            return int(self.keyslot(args[streams + 1]))
        return int(await super()._determine_slot(command, *args))


def asynchronous(url: str) -> redis.asyncio.Redis:
    """Return a client for an event loop, which connects on demand. Raises ValueError."""
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return redis.asyncio.from_url(url)
    options = _options(found, *found.nodes[0])
    if found.kind is Kind.SENTINEL:
        return cast("redis.asyncio.Redis", sentinels(found).master_for(found.service, **options))
    options.pop("db", None)
    # One silent primary must not block the others.
    options = {"socket_timeout": _NODE_S, "socket_connect_timeout": _NODE_CONNECT_S} | options
    nodes = [AsyncClusterNode(host, port) for host, port in found.nodes]
    return cast("redis.asyncio.Redis", _AsyncCluster(startup_nodes=nodes, **options))


def blocking(url: str, **options: Any) -> redis.Redis:
    """Return a client for threads. It connects on demand, or immediately to a cluster.

    Raises ValueError for an invalid URL, `ERRORS` if a cluster is not available.
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
    """Return XRANGE as lists: (id, [field, value, field, ...]). Raises `ERRORS`.

    redis-py's dictionaries cost time and lose duplicate fields. A cluster's clients change with the topology; then the
    request is repeated.
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
    """A primary of a cluster, or the only server."""

    def __init__(self, client: redis.asyncio.Redis, node: AsyncClusterNode | None = None) -> None:
        """Use a client. `node` is None for a single server."""
        self._client = client
        self._node = node
        self.name = "" if node is None else str(node.name)
        """Host and port in a cluster, otherwise empty."""

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the client.

        Raises `ERRORS`, or PrimaryUnavailable if a cluster's primary does not respond.
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
    """Return the current primaries, or the only server. Raises as `Primary.ask`."""
    cluster = cluster_of(client)
    if cluster is None:
        return [Primary(client)]
    return [Primary(client, node) for node in await _primaries(cluster)]


async def on_primaries(client: redis.asyncio.Redis, method: str, *arguments: str) -> list[Any]:
    """Return the replies of all primaries. Raises as `Primary.ask`."""
    return [await each.ask(method, *arguments) for each in await primaries(client)]


async def _primaries(cluster: redis.asyncio.RedisCluster) -> list[AsyncClusterNode]:
    try:
        await cluster.initialize()
    except RedisError as error:
        # The nodes are known by now. The error does not name its node.
        for node in {nodes[0].name: nodes[0] for nodes in cluster.nodes_manager.slots_cache.values()}.values():
            try:
                await node.execute_command("PING")
            except RedisError as its_own:
                raise _named(its_own, cluster, node) from None
        raise error from None
    return cluster.get_primaries()


def _named(error: RedisError, cluster: redis.asyncio.RedisCluster, node: AsyncClusterNode) -> RedisError:
    # Subclasses of these are replies.
    if type(error) not in (RedisConnectionError, RedisTimeoutError):
        return error
    return PrimaryUnavailable(node.name, _slots_of(cluster, node.name), str(error))


def _slots_of(cluster: redis.asyncio.RedisCluster, primary: str) -> list[range]:
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
    """Return the client if it is a cluster's, otherwise None."""
    return client if isinstance(client, redis.asyncio.RedisCluster) else None
