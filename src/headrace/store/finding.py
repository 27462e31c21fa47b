"""Finds the primary that Sentinels name."""

from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from headrace.redis_clients import sentinels
from headrace.storage_urls import Kind, StorageUrl
from headrace.topics.errors import StorageUnavailable

Finder = Callable[[], Awaitable[tuple[str, int]]]
"""Tells host and port of the server to connect to now. Raises StorageUnavailable."""


def finder(url: str) -> tuple[str, Finder | None]:
    """How to find the server of a URL.

    Returns:
        A URL with the options for its connections, and what finds it; None where the URL itself names the server.

    Raises:
        ValueError: the URL is none, or a cluster's, where there is more than one server.
    """
    found = StorageUrl.parse(url)
    if found.kind is Kind.SERVER:
        return url, None
    if found.kind is Kind.CLUSTER:
        raise ValueError("a cluster has a connection for each of its primaries")

    async def find() -> tuple[str, int]:
        # Made anew each time: connections to Sentinels that nobody needs are nobody's to look after.
        asked = sentinels(found)
        try:
            host, port = await asked.discover_master(found.service)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(str(error)) from None
        finally:
            for each in asked.sentinels:
                await each.aclose()
        return str(host), int(port)

    return found.at(*found.nodes[0]), find
