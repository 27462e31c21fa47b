"""Retention: old and surplus batches go, checked at intervals (`log.retention.check.interval.ms`)."""

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
"""How soon a partition is tried again that could not be trimmed, at first and at last."""
_PATIENCE_MS = 60_000
"""For how long: longer than a failover takes, or one slot of resharding."""
_log = structlog.get_logger("headrace.broker.topics")


class Due(NamedTuple):
    """A partition that is to be trimmed."""

    live: LiveTopic
    partition: Partition
    archive: TopicArchive | None


class Retention:
    """Of all partitions of the topics."""

    def __init__(self, topics: TopicTable, clock: Clock, producer_expiry_ms: int, archives: Archives | None) -> None:
        """Prepare.

        Args:
            topics: whose partitions.
            clock: the time.
            producer_expiry_ms: how long a producer that is silent is remembered (`producer.id.expiration.ms`).
            archives: what archived topics read from where; None: nothing of theirs goes.
        """
        self._topics = topics
        self._clock = clock
        self._producer_expiry_ms = producer_expiry_ms
        self._archives = archives

    async def enforce(self, patience_ms: int) -> None:
        """Trim every partition once. One that cannot be trimmed does not hold up the others.

        Of a slot that has moved (resharding), as of a primary that has been replaced, the first write of a quiet log
        finds out. So what may pass is tried again, for so many milliseconds, and only then told of.
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
        """Trim a partition; False: it is to be tried again."""
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
    """Take from Redis what is archived and older, or more, than stays there; nothing that the archive has not."""
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
    """Let a partition read what the table has, less what retention lets go; how far the log may be trimmed.

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
        # What lies between has gone before it was archived.
        return partition.local_start
    return min(archive.archive.ends.get(index, 0), extent.end)


async def _retained(live: LiveTopic, partition: LeaderPartition, archive: TopicArchive, now_ms: int) -> int:
    """Where the table begins for readers by `retention.ms` and `retention.bytes`, which count log and table."""
    config = live.config
    before_ms = None if config.retention_ms < 0 else now_ms - config.retention_ms
    most = None if config.retention_bytes < 0 else max(0, config.retention_bytes - await partition.size())
    if before_ms is None and most is None:
        return 0
    return await archive.run(lambda table: table.start_after(partition.index, before_ms, most))


async def _enforce(live: LiveTopic, partition: Partition, now_ms: int) -> None:
    """Take what is older, or more, than the topic keeps, and read nothing from an archive any more."""
    config = live.config
    if partition.log is not None:
        partition.log.cold = None
    await partition.trim(*_limits(config.retention_ms, config.retention_bytes, now_ms))


def _limits(retention_ms: int, retention_bytes: int, now_ms: int) -> tuple[int | None, int | None]:
    """Before which time records go, and how many bytes stay; None where a setting below 0 says that all do."""
    return None if retention_ms < 0 else now_ms - retention_ms, None if retention_bytes < 0 else retention_bytes


async def keep_enforcing(topics: TopicTable, clock: Clock, settings: BrokerSettings, archives: Archives | None) -> None:
    """Enforce at each interval (`log.retention.check.interval.ms`); runs until it is cancelled."""
    retention = Retention(topics, clock, settings.producer_id_expiration_ms, archives)
    interval_ms = settings.log_retention_check_interval_ms
    while True:
        await pause(clock, interval_ms)
        await retention.enforce(min(interval_ms, _PATIENCE_MS))
