"""Retention: old and surplus batches go, checked at intervals (`log.retention.check.interval.ms`)."""

import asyncio

import structlog

from headrace.broker.clock import Clock
from headrace.broker.live import LiveTopic
from headrace.broker.partition import Partition
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import TopicTable
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.retention")


async def enforce(topics: TopicTable, clock: Clock, producer_expiry_ms: int) -> int:
    """Trim every partition once; how many log starts moved. One that cannot be trimmed does not hold up the others.

    Args:
        topics: whose partitions.
        clock: the time.
        producer_expiry_ms: how long a producer that is silent is remembered (`producer.id.expiration.ms`).
    """
    moved = 0
    for live in topics:
        for partition in list(live.partitions):
            if partition.deleted:
                continue
            before = partition.log_start
            try:
                await _enforce(live, partition, clock.now_ms(), producer_expiry_ms)
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


async def _enforce(live: LiveTopic, partition: Partition, now_ms: int, producer_expiry_ms: int) -> None:
    config = live.config
    before_ms = None if config.retention_ms < 0 else now_ms - config.retention_ms
    max_bytes = None if config.retention_bytes < 0 else config.retention_bytes
    partition.expire_producers(now_ms - producer_expiry_ms)
    await partition.trim(before_ms, max_bytes)


async def keep_enforcing(topics: TopicTable, clock: Clock, settings: BrokerSettings) -> None:
    """Enforce for ever."""
    while True:
        due = asyncio.Event()
        clock.call_at(clock.ticks_ms() + settings.log_retention_check_interval_ms, due.set)
        await due.wait()
        await enforce(topics, clock, settings.producer_id_expiration_ms)
