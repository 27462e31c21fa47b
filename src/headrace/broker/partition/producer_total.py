"""Limit the idempotent producers of all logs together.

Each log stores a few hundred bytes per producer, and a client can use a new producer id for every batch. Near the
limit, the longest inactive producers are forgotten before `producer.id.expiration.ms`. Those that may still retry a
batch are kept, because a retry would become a duplicate. If this is not enough, new producers' batches are refused.
"""

import asyncio
from typing import Protocol
from weakref import WeakSet

import structlog

from headrace.aio.tasks import unheard
from headrace.broker.runtime.clock import Clock
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.topics.errors import TooManyProducers

LEAST_SILENT_MS = 180_000
"""A producer that was active within this time is never forgotten early. Clients retry for `delivery.timeout.ms`, two
minutes by default.
"""
_BEGIN = 0.9
"""Fraction of the limit from which producers are forgotten early."""
_SWEEP_AGAIN_MS = 1_000
_log = structlog.get_logger("headrace.broker.partition")


class ProducerLog(Protocol):
    """A log with idempotent producers."""

    @property
    def producers(self) -> int:
        """Number of known producers, including those refused temporarily."""

    def expire_silent(self, silent_ms: int) -> None:
        """Forget producers that were inactive for `silent_ms`."""


class ProducerTotal:
    """The idempotent producers of one server."""

    def __init__(self, most: int, expiry_ms: int, clock: Clock, lane: CooperativeScheduler | None = None) -> None:
        """`most` limits the producers, counted once per partition.

        `expiry_ms` is `producer.id.expiration.ms`.
        """
        self.most = most
        self._expiry_ms = expiry_ms
        self._clock = clock
        self._lane = lane or CooperativeScheduler()
        self._logs: WeakSet[ProducerLog] = WeakSet()
        self._count = 0
        """Count of the last sweep plus later additions; never too low."""
        self._sweeping: asyncio.Task[None] | None = None
        self._swept_ms: int | None = None

    def add(self, log: ProducerLog) -> None:
        """Count a log's producers while it is in use."""
        self._logs.add(log)

    def opened(self, count: int) -> None:
        """Add the producers of an opened log."""
        self._count += count
        self._look()

    def take(self) -> None:
        """Count one more producer. Raises TooManyProducers."""
        if self._count >= self.most * _BEGIN:
            self._look()
            if self._count >= self.most:
                raise TooManyProducers(
                    f"the server knows {self.most} producers of partitions already (headrace.max.producers), "
                    "and all of them were heard of lately: use fewer producers, or try again later"
                )
        self._count += 1

    def try_take(self) -> bool:
        """Count one more producer if allowed. Return whether it is."""
        try:
            self.take()
        except TooManyProducers:
            return False
        return True

    def _look(self) -> None:
        if self._count < self.most * _BEGIN or self._sweeping is not None:
            return
        now_ms = self._clock.ticks_ms()
        if self._swept_ms is not None and now_ms < self._swept_ms + _SWEEP_AGAIN_MS:
            return
        self._swept_ms = now_ms
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="producers")
        self._sweeping.add_done_callback(self._swept)
        unheard(self._sweeping)

    def _swept(self, _: object) -> None:
        self._sweeping = None

    async def _sweep(self) -> None:
        silent_ms = max(self._expiry_ms, LEAST_SILENT_MS)
        count = await self._pass(silent_ms)
        while count >= self.most * _BEGIN and silent_ms > LEAST_SILENT_MS:
            silent_ms = max(silent_ms // 2, LEAST_SILENT_MS)
            count = await self._pass(silent_ms)
        if silent_ms < self._expiry_ms or count >= self.most * _BEGIN:
            _log.warning("producer states expired early", silent_ms=silent_ms, producers=count, limit=self.most)

    async def _pass(self, silent_ms: int) -> int:
        began = self._count
        left = 0
        async for log in self._lane.pace().each(tuple(self._logs)):
            if log.producers:
                log.expire_silent(silent_ms)
                left += log.producers
        # Producers added during the pass may be counted or not.
        self._count = left + self._count - began
        return self._count
