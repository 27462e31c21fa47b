"""Retention: old and surplus batches go, checked at intervals (`log.retention.check.interval.ms`)."""

import asyncio

import structlog

from headrace.broker.clock import Clock
from headrace.broker.native.partition import NativePartition
from headrace.broker.ports import LogStorage
from headrace.broker.topics import TopicTable
from headrace.topics.errors import TopicError

_log = structlog.get_logger("headrace.retention")


async def enforce(topics: TopicTable, storage: LogStorage, clock: Clock) -> int:
    """Trim every partition once; how many log starts moved."""
    moved = 0
    for live in topics:
        config = live.config
        before_ms = None if config.retention_ms < 0 else clock.now_ms() - config.retention_ms
        max_bytes = None if config.retention_bytes < 0 else config.retention_bytes
        for partition in live.partitions:
            if partition.deleted:
                continue
            # Also where nothing can be trimmed: storage forgets idle producers on this occasion.
            before = partition.log_start
            if isinstance(partition, NativePartition):
                await partition.trim(before_ms, max_bytes)
            else:
                partition.trimmed(await storage.trim(partition.stream, before_ms=before_ms, max_bytes=max_bytes))
            if partition.log_start > before:
                moved += 1
                _log.info(
                    "log trimmed", topic=partition.topic, partition=partition.index, log_start=partition.log_start
                )
    return moved


async def keep_enforcing(topics: TopicTable, storage: LogStorage, clock: Clock, interval_ms: int) -> None:
    """Enforce for ever; a storage that is away for a moment is tried again at the next check."""
    while True:
        due = asyncio.Event()
        clock.call_at(clock.ticks_ms() + interval_ms, due.set)
        await due.wait()
        try:
            await enforce(topics, storage, clock)
        except TopicError as error:
            _log.warning("retention not enforced", reason=str(error))
