"""Health of this server, for probes."""

import asyncio

from headrace import __version__
from headrace.aio.single_flight import SingleFlight
from headrace.broker.runtime.clock import Clock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.app import Health
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import TopicError

EVERY_S = 0.5
"""Seconds between checks."""
_RECENT_MS = 1_000
"""Maximum milliseconds since the end of a check that answers a probe; later, the probe waits for the next one."""
_STORAGE_S = 2.0
"""Timeout of the Redis query in a health check."""


class HealthCheck:
    """Checks storage and brokers regularly, so that probes do not wait in the queue of the storage.

    A load balancer that gets no answer in time removes the server: a busy one would be removed.
    """

    def __init__(self, storage: RedisStorage, clusters: VirtualClusters, clock: Clock) -> None:
        self._storage = storage
        self._clusters = clusters
        self._clock = clock
        self._looking = SingleFlight(self._look, joins=True)
        self._found: Health | None = None
        self._found_ms = 0

    async def look(self) -> Health:
        """Return a recent check."""
        if self._found is None or self._clock.ticks_ms() - self._found_ms > _RECENT_MS:
            return await self._looking.get(None)
        return self._found

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._looking.get(None)
            await asyncio.sleep(EVERY_S)

    async def _look(self, _: None) -> Health:
        self._found = await self._check()
        self._found_ms = self._clock.ticks_ms()
        return self._found

    async def _check(self) -> Health:
        try:
            unanswered = await self._storage.unanswered(_STORAGE_S)
        except TopicError as error:
            return Health(version=__version__, storage=False, detail=str(error))
        unopened = [broker.unopened.told for _, broker in self._clusters]
        found = (*unanswered, *unopened, self._storage.unreadable.told)
        return Health(version=__version__, storage=True, detail="; ".join(filter(None, found)))
