"""Finds the primary that Sentinels name."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import redis.asyncio
from redis.exceptions import RedisError

from headrace.storage.redis.clients import sentinels
from headrace.storage.redis.url import Kind, StorageUrl
from headrace.topics.errors import StorageUnavailable

Place = tuple[str, int]
"""Host and port of a server."""

LOOK_S = 0.25
"""How often Sentinels are asked whom they name. A Sentinel itself sees a promotion within a second."""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 30.0
"""How soon a server that was named is tried once more, at first and at last."""


class Tries:
    """How often the servers that Sentinels name are tried.

    Where Sentinels disagree, or the server that they name takes nobody, each try leads back to where it began, and
    costs a connection with all that is under way over it.
    """

    def __init__(self) -> None:
        self._tried: dict[Place, tuple[float, float]] = {}
        """Until when one is left alone, and for how long that was."""

    def may(self, named: Place, now_s: float) -> bool:
        """Whether to try one that is named, which is then left alone for a while; others are not."""
        until_s, pause_s = self._tried.get(named, (now_s, 0.0))
        if now_s < until_s:
            return False
        pause_s = min(2 * pause_s, _LAST_PAUSE_S) or _FIRST_PAUSE_S
        self._tried[named] = now_s + pause_s, pause_s
        return True

    def is_there(self, named: Place, now_s: float) -> None:
        """The connection is where they name it; who is still there when its pause is over was no mistake."""
        until_s, _ = self._tried.get(named, (now_s, 0.0))
        if now_s >= until_s:
            self._tried.pop(named, None)


class PrimaryFinder:
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


def finder(url: str) -> tuple[str, PrimaryFinder | None]:
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

    return found.at(*found.nodes[0]), PrimaryFinder(found)
