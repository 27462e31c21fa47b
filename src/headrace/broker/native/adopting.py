"""Makes a Redis Stream that is there a partition of a native topic."""

from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import structlog

from headrace.broker.live import LiveTopic
from headrace.broker.native.opening import open_partition
from headrace.topics.config import check_given, resolve
from headrace.topics.errors import (
    Fenced,
    InvalidConfig,
    InvalidPartitions,
    StorageFull,
    StorageUnavailable,
    TopicError,
)
from headrace.topics.model import Topic
from headrace.topics.names import check_name
from headrace.topics.native import STORAGE, with_adopted

if TYPE_CHECKING:
    from headrace.broker.topics import TopicTable

_log = structlog.get_logger("headrace.topics")


async def adopt(table: "TopicTable", name: str, stream: str, partition: int, config: dict[str, str]) -> LiveTopic:
    """See `TopicTable.adopt`."""
    async with table.changing:
        check_name(name)
        check_given(config)
        for other in (*table, *table.elsewhere()):
            if stream in other.topic.streams:
                raise InvalidConfig(f"stream {stream!r} is a partition of topic {other.topic.name!r} already")
        known = table.get(name) if table.has(name) else None
        if known is None:
            config = {"retention.ms": "-1", "retention.bytes": "-1"} | config | {STORAGE: "native"}
            resolve(config, table.defaults)
            topic = Topic(name=name, id=uuid4(), streams=(), config=config, created_ms=table.clock.now_ms())
        elif not known.config.native:
            raise InvalidConfig(f"topic {name!r} is no native topic: it cannot take over a Redis Stream")
        else:
            topic = known.topic
        streams = list(topic.streams)
        if not 0 <= partition <= len(streams):
            raise InvalidPartitions(f"partition {partition} of {name!r}: the next one is {len(streams)}")
        if partition < len(streams) and known is not None and known.partitions[partition].log_end > 0:
            raise InvalidPartitions(f"partition {partition} of {name!r} has records of its own already")
        streams[partition : partition + 1] = [stream]
        topic = msgspec.structs.replace(topic, streams=tuple(streams), config=with_adopted(topic.config, partition))
        try:
            opened = await open_partition(topic, partition, table.storage.native, table.clock, must_exist=True)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            raise InvalidConfig(str(error)) from None
        table.leading.point(opened)
        if known is None:
            await table.storage.topics.create(topic)
            live = LiveTopic(topic, resolve(topic.config, table.defaults), [opened], [opened])
            table.add(live)
            _log.info("stream adopted", topic=name, partition=partition, stream=stream)
            return live
        await table.storage.topics.replace(topic, known.topic)
        for replaced in known.partitions[partition : partition + 1]:
            replaced.close()
        known.topic = topic
        before, after = known.natives[:partition], known.natives[partition + 1 :]
        table.put(known, [*before, opened, *after], [*before, opened, *after])
        _log.info("stream adopted", topic=name, partition=partition, stream=stream)
        return known
