"""Reports partitions that accept no records: offline ones at once, others after some time."""

import asyncio
from collections.abc import Iterable

import structlog

from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import LiveTopic

LOOK_MS = 5_000
LONG_MS = 20_000
"""Longer than takeovers and missed heartbeats take."""
_AT_ONCE = 1_000
"""Partitions checked per turn of the event loop."""
_log = structlog.get_logger("headrace.broker.topics")


class OfflinePartitions:
    """Checks every few seconds, and reports changes."""

    def __init__(self, topics: Iterable[LiveTopic], clock: Clock) -> None:
        """`topics` is iterated at each check."""
        self.told = ""
        """Current problem without names. Empty: none."""
        self.offline = 0
        """Offline partitions at the last check, native ones included."""
        self._topics = topics
        self._clock = clock
        self._long = ""
        """The part about logs that are not open."""
        self._since: dict[LeaderPartition, tuple[Exception, int]] = {}
        """Reason, and time of the first check."""

    async def look(self) -> None:
        """Check all partitions once."""
        now_ms, since = self._clock.ticks_ms(), {}
        offline = 0
        for number, each in enumerate([each for live in self._topics for each in live.partitions], 1):
            if each.offline is not None:
                await each.try_again()
                offline += each.offline is not None and not each.deleted
            log = each.log
            if log is not None and (fenced_reason := log.fenced_reason) is not None:
                before = self._since.get(log)
                # With another reason, it was open or retried in between.
                since[log] = before if before is not None and before[0] is fenced_reason else (fenced_reason, now_ms)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._since, self.offline = since, offline
        self._tell(now_ms)

    def _tell(self, now_ms: int) -> None:
        long = [
            (since, log, fenced_reason)
            for log, (fenced_reason, since) in self._since.items()
            if now_ms - since >= LONG_MS and log.offline is None
        ]
        offline = f"partitions offline: {self.offline}, see the log" if self.offline else ""
        self._log_long_offline(now_ms, long)
        self.told = "; ".join(filter(None, (offline, self._long)))

    def _log_long_offline(self, now_ms: int, long: list[tuple[int, LeaderPartition, Exception]]) -> None:
        before, self._long = self._long, ""
        if long:
            since, log, fenced_reason = min(long, key=lambda each: each[0])
            for_s = (now_ms - since) // 1_000
            self._long = f"partitions led here that have taken no records for {for_s} s: {len(long)}, see the log"
            if not before:
                _log.error(
                    "partitions accept no records: their logs are not recovered",
                    partitions=len(long),
                    for_s=for_s,
                    topic=log.topic,
                    partition=log.index,
                    reason=str(fenced_reason),
                )
        elif before:
            _log.info("all partitions accept records again")

    async def keep_looking(self) -> None:
        """Check at each interval until canceled."""
        while True:
            due = asyncio.Event()
            self._clock.call_at(self._clock.ticks_ms() + LOOK_MS, due.set)
            await due.wait()
            await self.look()
