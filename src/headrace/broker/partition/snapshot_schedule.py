"""Writes down within a second what has changed of logs' producers, so that an opening reads few batches."""

import asyncio
from typing import Protocol

import structlog

from headrace.aio.concurrency import in_slices
from headrace.broker.runtime.clock import Clock, pause
from headrace.topics.errors import TopicError

INTERVAL_MS = 1_000
_AT_ONCE = 64
_STOP_S = 3.0
"""How long a server that ends waits for all of them to be written down."""
_log = structlog.get_logger("headrace.broker.partition")


class Saved(Protocol):
    """A partition whose producers are to be written down."""

    async def save_producers(self) -> None:
        """Write down what has changed. Raises TopicError when it could not be."""


class SnapshotSchedule:
    """The partitions that have something to write down."""

    def __init__(self) -> None:
        self._due: dict[Saved, None] = {}

    def add(self, partition: Saved) -> None:
        """It has changed since it was last written down."""
        self._due[partition] = None

    def discard(self, partition: Saved) -> None:
        """Save nothing of a partition that is deleted, or led elsewhere."""
        self._due.pop(partition, None)

    async def save_last(self, within_s: float = _STOP_S) -> None:
        """Write all of them down before the server ends, unless that takes too long.

        What is not written down is in the log's newest batches, which whoever opens it next goes through anyway.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.save()
        except TimeoutError:
            _log.warning("producers were not written down: Redis takes too long; the next opening reads more batches")

    async def save(self) -> None:
        """Write all of them down; one that cannot be is tried again the next time."""
        due, self._due = list(self._due), {}
        async for _ in in_slices(due, self._save_one, _AT_ONCE):
            pass

    async def _save_one(self, partition: Saved) -> None:
        try:
            await partition.save_producers()
        except Exception as error:  # the others are saved all the same
            self._due[partition] = None
            if not isinstance(error, TopicError):
                _log.exception("a snapshot failed")

    async def keep_saving(self, clock: Clock) -> None:
        """Save at each interval; runs until it is cancelled."""
        while True:
            await pause(clock, INTERVAL_MS)
            await self.save()
