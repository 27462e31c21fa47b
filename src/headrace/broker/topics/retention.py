"""Retention: removes old and surplus batches at intervals (`log.retention.check.interval.ms`)."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import structlog

from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.remote_log import Archives, RemotePartition, TopicArchive
from headrace.broker.runtime.clock import Clock, pause
from headrace.broker.runtime.retry import backoff
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.table import TopicTable
from headrace.topics.errors import StorageNotWritten, StorageUnavailable, TopicError

_AGAIN_MS, _SELDOM_MS = 250, 2_000
"""First and longest pause before a failed partition is retried."""
_PATIENCE_MS = 60_000
"""Maximum time of retries: longer than a failover, or resharding of one slot."""
_log = structlog.get_logger("headrace.broker.topics")


class Due(NamedTuple):
    """A partition to trim."""

    live: LiveTopic
    partition: Partition
    archive: TopicArchive | None


class Retention:
    """Retention of all topics."""

    def __init__(self, topics: TopicTable, clock: Clock, producer_expiry_ms: int, archives: Archives | None) -> None:
        """Prepare. Without `archives`, archived topics keep their records in Redis."""
        self._topics = topics
        self._clock = clock
        self._producer_expiry_ms = producer_expiry_ms
        self._archives = archives

    async def enforce(self, patience_ms: int) -> None:
        """Trim every partition once. A failed one does not delay the others.

        The first write to a quiet log detects a moved slot or a replaced primary. Such errors are retried for
        `patience_ms` before they are logged.
        """
        later = [each async for each in self._all() if not await self._trimmed(each, may_pass=patience_ms > 0)]
        until_ms, again = self._clock.ticks_ms() + patience_ms, backoff(self._clock, _AGAIN_MS, _SELDOM_MS)
        while later:
            await again.pause()
            may_pass = self._clock.ticks_ms() < until_ms
            later = [each for each in later if not await self._trimmed(each, may_pass=may_pass)]

    async def _all(self) -> AsyncIterator[Due]:
        for live in self._topics:
            archive = None
            if live.config.remote and self._archives is not None:
                archive = await _looked_at(self._archives, live)
            for partition in list(live.partitions):
                if not partition.deleted:
                    partition.refusals.expire(self._producer_expiry_ms)
                yield Due(live, partition, archive)

    async def _trimmed(self, due: Due, *, may_pass: bool) -> bool:
        """Trim a partition. Return False to retry."""
        live, partition, archive = due
        if partition.deleted or partition.leader is not None:
            return True
        before, now_ms = partition.log_start, self._clock.now_ms()
        try:
            partition.expire_producers(now_ms - self._producer_expiry_ms)
            if partition.log is not None and live.config.remote:
                await _enforce_local(live, partition.log, now_ms, self._archives, archive)
            else:
                await _enforce(live, partition, now_ms)
        except TopicError as error:
            if may_pass and isinstance(error, StorageUnavailable) and not isinstance(error, StorageNotWritten):
                return False
            _log.warning("retention not enforced", topic=partition.topic, partition=partition.index, reason=str(error))
        if partition.log_start > before:
            _log.info("log trimmed", topic=partition.topic, partition=partition.index, log_start=partition.log_start)
        return True


async def _looked_at(archives: Archives, live: LiveTopic) -> TopicArchive | None:
    try:
        return await archives.refresh(live.topic)
    except TopicError as error:
        _log.warning("retention not enforced", topic=live.topic.name, reason=str(error))
        return None


async def _enforce_local(
    live: LiveTopic, partition: LeaderPartition, now_ms: int, archives: Archives | None, archive: TopicArchive | None
) -> None:
    if archives is None or archive is None:
        return
    up_to = await _settle(live, partition, archives, archive, now_ms)
    config, before = live.config, partition.local_start
    await partition.trim(*_limits(config.local_retention_ms, config.local_retention_bytes, now_ms), up_to)
    if partition.local_start > before:
        _log.info(
            "archived records trimmed",
            topic=partition.topic,
            partition=partition.index,
            local_start=partition.local_start,
            log_start=partition.log_start,
            archived=up_to,
        )


async def _settle(
    live: LiveTopic, partition: LeaderPartition, archives: Archives, archive: TopicArchive, now_ms: int
) -> int:
    """Attach the archive after retention. Return the offset up to which the log may be trimmed.

    Raises:
        ArchiveUnavailable, StorageUnavailable: nothing may be trimmed.
    """
    assert archive.archive is not None
    index = partition.index
    extent = archive.extents.get(index)
    if extent is None:
        return partition.local_start
    start = max(extent.start, await _retained(live, partition, archive, now_ms))
    if partition.cold is not None:
        await partition.cold.raise_start(start)
    elif extent.end >= partition.local_start:
        known = archives.start_of(live.topic, index)
        if start > known:
            await archive.keep_start(index, start)
        partition.cold = RemotePartition(archive, index, max(start, known))
    else:
        # Records in between were removed before they were archived.
        return partition.local_start
    return min(archive.archive.ends.get(index, 0), extent.end)


async def _retained(live: LiveTopic, partition: LeaderPartition, archive: TopicArchive, now_ms: int) -> int:
    config = live.config
    before_ms = None if config.retention_ms < 0 else now_ms - config.retention_ms
    most = None if config.retention_bytes < 0 else max(0, config.retention_bytes - await partition.size())
    if before_ms is None and most is None:
        return 0
    return await archive.run(lambda table: table.start_after(partition.index, before_ms, most))


async def _enforce(live: LiveTopic, partition: Partition, now_ms: int) -> None:
    config = live.config
    if partition.log is not None:
        partition.log.cold = None
    await partition.trim(*_limits(config.retention_ms, config.retention_bytes, now_ms))


def _limits(retention_ms: int, retention_bytes: int, now_ms: int) -> tuple[int | None, int | None]:
    """Return the oldest time and maximum bytes to keep. None: no limit."""
    return None if retention_ms < 0 else now_ms - retention_ms, None if retention_bytes < 0 else retention_bytes


async def keep_enforcing(topics: TopicTable, clock: Clock, settings: BrokerSettings, archives: Archives | None) -> None:
    """Enforce retention at each interval until canceled."""
    retention = Retention(topics, clock, settings.producer_id_expiration_ms, archives)
    interval_ms = settings.log_retention_check_interval_ms
    while True:
        await pause(clock, interval_ms)
        await retention.enforce(min(interval_ms, _PATIENCE_MS))
