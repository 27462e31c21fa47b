"""What all logs of a server know of idempotent producers together, and what goes when that is too much.

A log knows each of its producers by a few hundred bytes, and a client can send batches to every partition under one new
producer id after the other. Near the bound those silent for longest are forgotten before `producer.id.expiration.ms`,
but none that may still repeat a batch: its repetition would be stored as a new batch without notice.
Where that is not enough, batches of producers that are new to their partition are refused.
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
"""No producer that was heard of within this time is forgotten for others: clients repeat a batch for
`delivery.timeout.ms`, two minutes unless they set it."""
_BEGIN = 0.9
"""Part of the bound from which on producers are forgotten early."""
_SWEEP_AGAIN_MS = 1_000
_log = structlog.get_logger("headrace.broker.partition")


class ProducerLog(Protocol):
    """A log, as far as its producers count."""

    @property
    def producers(self) -> int:
        """How many it knows, those included that it has refused for a moment."""

    def expire_silent(self, silent_ms: int) -> None:
        """Forget those that were silent for so long."""


class ProducerTotal:
    """The producers of one server."""

    def __init__(self, most: int, expiry_ms: int, clock: Clock, lane: CooperativeScheduler | None = None) -> None:
        """Know of no log.

        Args:
            most: producers of all partitions together, each counted once for each of its partitions.
            expiry_ms: after how long they are forgotten anyway (`producer.id.expiration.ms`).
            clock: the time.
            lane: where forgetting takes turns.
        """
        self.most = most
        self._expiry_ms = expiry_ms
        self._clock = clock
        self._lane = lane or CooperativeScheduler()
        self._logs: WeakSet[ProducerLog] = WeakSet()
        self._count = 0
        """As of the last sweep, and those that have come since: never too few."""
        self._sweeping: asyncio.Task[None] | None = None
        self._swept_ms: int | None = None

    def add(self, log: ProducerLog) -> None:
        """Count a log's producers, for as long as the log is in use."""
        self._logs.add(log)

    def opened(self, count: int) -> None:
        """A log was opened that knows so many."""
        self._count += count
        self._look()

    def take(self) -> None:
        """Count one more. Raises TooManyProducers."""
        if self._count >= self.most * _BEGIN:
            self._look()
            if self._count >= self.most:
                raise TooManyProducers(
                    f"the server knows {self.most} producers of partitions already (headrace.max.producers), "
                    "and all of them were heard of lately: use fewer producers, or try again later"
                )
        self._count += 1

    def try_take(self) -> bool:
        """Count one more, if there is room for it."""
        try:
            self.take()
        except TooManyProducers:
            return False
        return True

    def _look(self) -> None:
        """Begin to forget, unless that is under way or has been tried just now."""
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
        """Forget those that were silent for longest, in each pass those of half the time, until it is enough."""
        silent_ms = max(self._expiry_ms, LEAST_SILENT_MS)
        count = await self._pass(silent_ms)
        while count >= self.most * _BEGIN and silent_ms > LEAST_SILENT_MS:
            silent_ms = max(silent_ms // 2, LEAST_SILENT_MS)
            count = await self._pass(silent_ms)
        if silent_ms < self._expiry_ms or count >= self.most * _BEGIN:
            _log.warning("producers were forgotten early", silent_ms=silent_ms, producers=count, limit=self.most)

    async def _pass(self, silent_ms: int) -> int:
        """Forget those that were silent for so long; how many are left."""
        began = self._count
        left = 0
        async for log in self._lane.pace().each(tuple(self._logs)):
            if log.producers:
                log.expire_silent(silent_ms)
                left += log.producers
        # Those that came during the pass may have been counted, or not.
        self._count = left + self._count - began
        return self._count
