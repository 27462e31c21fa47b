"""Why this server cannot be read or does not accept records: the one answer of probes, console and metrics."""

import asyncio

import structlog

from headrace import __version__
from headrace.aio.single_flight import SingleFlight
from headrace.broker.runtime.clock import Clock
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.app import Health
from headrace.metrics.counters import StoreCounters
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import TopicError

EVERY_S = 0.5
"""Seconds between checks."""
_RECENT_MS = 2_000
"""Maximum milliseconds since the end of a check that answers a probe; later, the probe waits for the next one."""
_STORAGE_S = 2.0
"""Timeout of the query of Redis."""
_REFUSED_MS = 5_000
"""Time for which a refused batch counts if no later one was refused or accepted. Producers retry within a second."""
_DECLARED_DEAD = "the other brokers have declared this one dead: it accepts nothing until it has joined again"
_log = structlog.get_logger("headrace.server")


class HealthCheck:
    """Checks storage and brokers regularly, so that probes do not wait in the queue of the storage.

    A load balancer that gets no answer in time removes the server: a busy one would be removed.
    """

    def __init__(self, storage: RedisStorage, clusters: VirtualClusters, counted: StoreCounters, clock: Clock) -> None:
        """Know no problem yet.

        Args:
            storage: the storage.
            clusters: their brokers.
            counted: has the refusal of the last batch. A full memory can refuse batches and still take small writes.
            clock: the time of checks.
        """
        self._storage = storage
        self._clusters = clusters
        self._counted = counted
        self._clock = clock
        self._refused = 0
        self._refused_ms = 0
        self._looking = SingleFlight(self._look, joins=True)
        self._found: Health | None = None
        self._found_ms = 0
        self.refusal = ""
        """Why no records are accepted, as of the last check; empty: they are."""

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
            found = await self._storage.readiness(_STORAGE_S)
        except TopicError as error:
            self._show(str(error))
            return Health(version=__version__, storage=False, detail=str(error), refusal=str(error))
        refusals = [] if found.writable else list(found.problems)
        if not self._clusters.ownership.brokers:
            refusals.append(_DECLARED_DEAD)
        if not refusals and (recent := self._recent_refusal()):
            refusals.append(recent)
        self._show("; ".join(refusals))
        unopened = [broker.unopened.told for _, broker in self._clusters]
        details = (*refusals, *found.problems, *unopened, self._storage.unreadable.told)
        detail = "; ".join(dict.fromkeys(filter(None, details)))
        return Health(version=__version__, storage=True, detail=detail, refusal=self.refusal)

    def _recent_refusal(self) -> str:
        counted, now = self._counted, self._clock.ticks_ms()
        if counted.refused != self._refused:
            self._refused, self._refused_ms = counted.refused, now
        elif now - self._refused_ms > _REFUSED_MS:
            counted.refusal = ""
        return counted.refusal

    def _show(self, refusal: str) -> None:
        if refusal and not self.refusal:
            _log.error("this server accepts no records", reason=refusal)
        elif self.refusal and not refusal:
            _log.info("this server accepts records again")
        self.refusal = refusal
