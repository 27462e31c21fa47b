"""Finds the primary that Sentinels name."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import redis.asyncio
from redis.exceptions import RedisError

from headrace.redis_clients import sentinels
from headrace.storage_urls import Kind, StorageUrl
from headrace.topics.errors import StorageUnavailable

Place = tuple[str, int]
"""Host and port of a server."""

LOOK_S = 0.25
"""How often Sentinels are asked whom they name. A Sentinel itself sees a promotion within a second."""


class Finder:
    """Asks the Sentinels of a URL."""

    def __init__(self, url: StorageUrl) -> None:
        """`url`: theirs, with the name of the primary."""
        self._url = url

    async def find(self) -> Place:
        """The server to connect to now. Raises StorageUnavailable."""
        # Made anew each time: connections to Sentinels that nobody needs are nobody's to look after.
        async with self._asked() as asked:
            return await self._named(asked)

    async def names(self) -> AsyncGenerator[Place, None]:
        """Whom they name, for ever and as often as `LOOK_S` says, as long as one of them answers."""
        async with self._asked() as asked:
            while True:
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(StorageUnavailable):
                    yield await self._named(asked)

    async def _named(self, asked: redis.asyncio.Sentinel) -> Place:
        try:
            host, port = await asked.discover_master(self._url.service)
        except (RedisError, OSError) as error:
            raise StorageUnavailable(str(error)) from None
        return str(host), int(port)

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[redis.asyncio.Sentinel]:
        asked = sentinels(self._url)
        try:
            yield asked
        finally:
            for each in asked.sentinels:
                await each.aclose()


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

    return found.at(*found.nodes[0]), Finder(found)
