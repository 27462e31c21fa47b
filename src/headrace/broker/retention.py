"""Retention: old and surplus batches go, checked at intervals (`log.retention.check.interval.ms`)."""

import asyncio

import structlog

from headrace.broker.clock import Clock
from headrace.broker.cold import Archives, TopicArchive
from headrace.broker.live import LiveTopic
from headrace.broker.log import LogPartition
from headrace.broker.partition import Partition
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import TopicTable
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.retention")


async def enforce(topics: TopicTable, clock: Clock, producer_expiry_ms: int, archives: Archives | None = None) -> int:
    """Trim every partition once; how many log starts moved. One that cannot be trimmed does not hold up the others.

    Args:
        topics: whose partitions.
        clock: the time.
        producer_expiry_ms: how long a producer that is silent is remembered (`producer.id.expiration.ms`).
        archives: what archived topics read from where; None: nothing of theirs goes.
    """
    moved = 0
    for live in topics:
        archive = None
        if live.config.remote and archives is not None:
            archive = await _looked_at(archives, live)
        for partition in list(live.partitions):
            if partition.deleted:
                continue
            partition.refusals.expire(producer_expiry_ms)
            if partition.leader is not None:
                continue
            before = partition.log_start
            try:
                partition.expire_producers(clock.now_ms() - producer_expiry_ms)
                if partition.log is not None and live.config.remote:
                    await _enforce_local(live, partition.log, clock.now_ms(), archives, archive)
                else:
                    await _enforce(live, partition, clock.now_ms())
            except TopicError as error:
                _log.warning(
                    "retention not enforced", topic=partition.topic, partition=partition.index, reason=str(error)
                )
            if partition.log_start > before:
                moved += 1
                _log.info(
                    "log trimmed", topic=partition.topic, partition=partition.index, log_start=partition.log_start
                )
    return moved


async def _looked_at(archives: Archives, live: LiveTopic) -> TopicArchive | None:
    try:
        return await archives.refresh(live)
    except TopicError as error:
        _log.warning("retention not enforced", topic=live.topic.name, reason=str(error))
        return None


async def _enforce_local(
    live: LiveTopic, partition: LogPartition, now_ms: int, archives: Archives | None, archive: TopicArchive | None
) -> None:
    """Take from Redis what is archived and older, or more, than stays there; nothing that the archive has not."""
    if archives is None or archive is None:
        return
    up_to = await archives.settle(live, partition, archive, now_ms)
    config, before = live.config, partition.local_start
    before_ms = None if config.local_retention_ms < 0 else now_ms - config.local_retention_ms
    max_bytes = None if config.local_retention_bytes < 0 else config.local_retention_bytes
    await partition.trim(before_ms, max_bytes, up_to)
    if partition.local_start > before:
        _log.info(
            "archived records trimmed",
            topic=partition.topic,
            partition=partition.index,
            local_start=partition.local_start,
            log_start=partition.log_start,
            archived=up_to,
        )


async def _enforce(live: LiveTopic, partition: Partition, now_ms: int) -> None:
    config = live.config
    before_ms = None if config.retention_ms < 0 else now_ms - config.retention_ms
    max_bytes = None if config.retention_bytes < 0 else config.retention_bytes
    if partition.log is not None:
        partition.log.cold = None
    await partition.trim(before_ms, max_bytes)


async def keep_enforcing(topics: TopicTable, clock: Clock, settings: BrokerSettings, archives: Archives | None) -> None:
    """Enforce at each interval (`log.retention.check.interval.ms`); runs until it is cancelled."""
    while True:
        due = asyncio.Event()
        clock.call_at(clock.ticks_ms() + settings.log_retention_check_interval_ms, due.set)
        await due.wait()
        await enforce(topics, clock, settings.producer_id_expiration_ms, archives)
