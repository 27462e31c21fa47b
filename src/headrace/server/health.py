"""Why this server cannot be read or does not accept records: the one answer of probes, console and metrics."""

import asyncio
from time import monotonic

import structlog

from headrace import __version__
from headrace.aio.single_flight import SingleFlight
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.http.app import Health
from headrace.metrics.counters import StoreCounters
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import TopicError

EVERY_S = 2.0
_STORAGE_S = 2.0
"""Timeout of the query of Redis."""
_REFUSED_S = 5.0
"""Time for which a refused batch counts if no later one was refused or accepted. Producers retry within a second."""
_DECLARED_DEAD = "the other brokers have declared this one dead: it accepts nothing until it has joined again"
_log = structlog.get_logger("headrace.server")


class HealthCheck:
    """Checks storage and brokers, for each probe and every two seconds."""

    def __init__(self, storage: RedisStorage, clusters: VirtualClusters, counted: StoreCounters) -> None:
        """Know no problem yet.

        Args:
            storage: the storage.
            clusters: their brokers.
            counted: has the refusal of the last batch. A full memory can refuse batches and still take small writes.
        """
        self._storage = storage
        self._clusters = clusters
        self._counted = counted
        self._refused = 0
        self._refused_at = 0.0
        self._looking = SingleFlight(self._look)
        self.refusal = ""
        """Why no records are accepted, as of the last check; empty: they are."""

    async def look(self) -> Health:
        """Check now."""
        return await self._looking.get(None)

    async def run(self) -> None:
        """Check every two seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def _look(self, _: None) -> Health:
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
        counted, now = self._counted, monotonic()
        if counted.refused != self._refused:
            self._refused, self._refused_at = counted.refused, now
        elif now - self._refused_at > _REFUSED_S:
            counted.refusal = ""
        return counted.refusal

    def _show(self, refusal: str) -> None:
        if refusal and not self.refusal:
            _log.error("this server accepts no records", reason=refusal)
        elif self.refusal and not refusal:
            _log.info("this server accepts records again")
        self.refusal = refusal
