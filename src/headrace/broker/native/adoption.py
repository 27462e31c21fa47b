"""Adopt an existing Redis Stream as a partition of a native topic."""

from functools import partial
from uuid import uuid4

import msgspec
import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.native.partition import NativePartition
from headrace.broker.native.stream_manager import natives_of, open_partition
from headrace.broker.ports import TopicStorage
from headrace.broker.runtime.retry import retry_while_unavailable
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.table import TopicTable
from headrace.topics.config import check_given, resolve
from headrace.topics.errors import (
    Fenced,
    InvalidConfig,
    InvalidPartitions,
    StorageFull,
    StorageUnavailable,
    TopicError,
    TopicExists,
)
from headrace.topics.model import Topic
from headrace.topics.native import STORAGE, with_adopted


async def replace(topics: TopicStorage, target: Topic, before: Topic, view: int | None) -> None:
    """Give a topic other streams, fenced by the broker epoch in which this server was alone. None: no fencing.

    A broker that joined later would append to the old streams, which have no readers.

    Raises:
        TopicChanged: the topic is no longer `before`. Fenced: a newer epoch exists.
        StorageUnavailable: the topic is unchanged.
    """
    try:
        await topics.replace(target, before, view)
    except StorageUnavailable:
        # Until the outcome is known: a replacement would lose appends.
        if await retry_while_unavailable(partial(topics.find, target.name), None) != target:
            raise


_log = structlog.get_logger("headrace.broker.native")


async def adopt(table: TopicTable, name: str, stream: str, partition: int, config: dict[str, str]) -> LiveTopic:
    """Adopt a Redis Stream, unchanged, as a topic's next partition or in place of an empty one.

    A missing topic is created with partition 0 and `config`. By default, retention is off.

    Raises:
        InvalidTopicName, InvalidConfig: the key is not a stream or belongs to a topic.
        InvalidPartitions: the partition is neither the next one nor empty.
    """
    return await to_the_end(_adopt(table, name, stream, partition, config))


async def _adopt(table: TopicTable, name: str, stream: str, partition: int, config: dict[str, str]) -> LiveTopic:
    async with table.changing:
        if not table.has(name):
            table.check_free(name)
        check_given(config)
        for other in (*(live.topic for live in table), *table.others.topics()):
            if stream in other.streams:
                raise InvalidConfig(f"stream {stream!r} is a partition of topic {other.name!r} already")
        if table.has(name):
            live = await _add(table, table.changeable(name), stream, partition)
        else:
            live = await _create(table, name, stream, partition, config)
        _log.info("stream adopted", topic=name, partition=partition, stream=stream)
        return live


async def _create(table: TopicTable, name: str, stream: str, partition: int, config: dict[str, str]) -> LiveTopic:
    config = {"retention.ms": "-1", "retention.bytes": "-1"} | config | {STORAGE: "native"}
    table.checker.check_attainable(resolve(config, table.defaults).checks)
    topic = _with(
        Topic(name=name, id=uuid4(), streams=(), config=config, created_ms=table.clock.now_ms()), stream, partition
    )
    opened = await _opened(table, topic, partition)
    try:
        await table.storage.topics.create(topic)
    except BaseException as error:
        opened.close()
        if isinstance(error, TopicExists):
            await table.open_stored(name)
        raise
    live = LiveTopic(topic, resolve(topic.config, table.defaults), [opened])
    table.add(live)
    return live


async def _add(table: TopicTable, live: LiveTopic, stream: str, partition: int) -> LiveTopic:
    name = live.topic.name
    if not live.config.native:
        raise InvalidConfig(f"topic {name!r} is no native topic: it cannot take over a Redis Stream")
    topic = _with(live.topic, stream, partition)
    replaced = natives_of(live.partitions[partition : partition + 1])
    view = table.leading.check_alone(f"partition {partition} of {name!r} cannot be replaced") if replaced else None
    opened: NativePartition | None = None
    try:
        for each in replaced:
            # Later appends to the old stream would be lost.
            each.paused = True
            await _check_empty(each)
        opened = await _opened(table, topic, partition)
        await replace(table.storage.topics, topic, live.topic, view)
    except BaseException as error:
        if opened is not None:
            opened.close()
        for each in replaced:
            each.paused = False
        if isinstance(error, Fenced) and view is not None:
            why = f"topic {name!r} stays as it is: another broker has joined or left in the meantime"
            raise InvalidConfig(why) from error
        raise
    live.topic = topic
    table.put(live, [*live.partitions[:partition], opened, *live.partitions[partition + 1 :]])
    for each in replaced:
        each.close()
    return live


async def _check_empty(partition: NativePartition) -> None:
    await partition.settle()
    if partition.log_end > 0:
        raise InvalidPartitions(f"partition {partition.index} of {partition.topic!r} has records of its own already")


def _with(topic: Topic, stream: str, partition: int) -> Topic:
    streams = list(topic.streams)
    if not 0 <= partition <= len(streams):
        raise InvalidPartitions(f"partition {partition} of {topic.name!r}: the next one is {len(streams)}")
    streams[partition : partition + 1] = [stream]
    return msgspec.structs.replace(topic, streams=tuple(streams), config=with_adopted(topic.config, partition))


async def _opened(table: TopicTable, topic: Topic, partition: int) -> NativePartition:
    try:
        opened = await open_partition(topic, partition, table.storage.native, table.clock, must_exist=True)
    except (Fenced, StorageFull, StorageUnavailable):
        raise
    except TopicError as error:
        raise InvalidConfig(str(error)) from None
    table.leading.point(opened)
    return opened
