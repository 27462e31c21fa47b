"""Applies changes of topics by other brokers: created, configured, grown, converted, moved, deleted."""

import structlog

from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.table import TopicTable
from headrace.topics.config import resolve
from headrace.topics.errors import UnreadableTopic
from headrace.topics.model import Topic

_log = structlog.get_logger("headrace.broker.topics")


async def refresh(table: TopicTable, name: str) -> None:
    """Update a topic from storage. Raises StorageUnavailable."""
    async with table.changing:
        try:
            stored = await table.storage.topics.find(name)
        except UnreadableTopic:
            # The known topic remains. Storage has reported the entry.
            return
        await _take(table, name, stored)


async def refresh_all(table: TopicTable) -> None:
    """Update all topics from storage. Raises StorageUnavailable."""
    async with table.changing:
        stored = {topic.name: topic for topic in await table.storage.topics.load()}
        unreadable = {name for name in table.names() if table.storage.topics.unreadable(name) is not None}
        for name in sorted({*stored, *table.names()} - unreadable):
            await _take(table, name, stored.get(name))


async def take_move(name: str, source: TopicTable, target: TopicTable) -> bool:
    """Hand over a topic that is now stored in another virtual cluster, without a gap.

    The caller makes one move at a time. Returns whether it was moved. Raises StorageUnavailable.
    """
    async with source.changing, target.changing:
        stored = await target.storage.topics.find(name)
        if stored is None or not source.has(name) or (live := source.get(name)).topic.id != stored.id:
            return False
        if target.has(name):
            there = target.get(name)
            if there.topic.id == stored.id:
                # The virtual cluster is new here, and was loaded with it.
                return True
            await _dismiss(target, there)
        await source.hand_over(live, target)
        _log.info("topic moved by another broker", topic=name)
        return True


async def _dismiss(table: TopicTable, live: LiveTopic) -> None:
    await table.dismiss(live)
    await table.forgotten(live.topic)
    _log.info("topic deleted by another broker", topic=live.topic.name)


async def _take(table: TopicTable, name: str, stored: Topic | None) -> None:
    live = table.get(name) if table.has(name) else None
    if live is not None and (stored is None or stored.id != live.topic.id):
        await _dismiss(table, live)
        live = None
    if stored is None:
        return
    if live is None:
        await table.open(stored)
        _log.info("topic created by another broker", topic=name, partitions=stored.partitions)
    elif stored != live.topic:
        await _alter(table, live, stored)
        _log.info("topic altered by another broker", topic=name)


async def _alter(table: TopicTable, live: LiveTopic, stored: Topic) -> None:
    config = resolve(stored.config, table.defaults)
    kept = live.topic.partitions
    for index, (before, after) in enumerate(zip(live.topic.streams, stored.streams, strict=False)):
        if before != after:
            kept = index
            break
    manager = table.manager(config)
    if manager is not table.manager(live.config):
        kept = 0
    added = await manager.open(stored, config, kept)
    closed = live.partitions[kept:]
    live.topic, live.config = stored, config
    table.put(live, [*live.partitions[:kept], *added])
    live.configure(config)
    for partition in closed:
        partition.close()
