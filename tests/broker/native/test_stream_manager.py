"""Partitions of native topics: opened over any contents of their keys, and handed over with their topic."""

from typing import Any
from uuid import UUID

from tests.conftest import OpenStorage

from headrace.broker.brokers.leadership import LeaderRegistry, Leadership
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.native.stream_manager import StreamManager, natives_of
from headrace.broker.ports import Storage
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.model import Topic

CONFIG = {"headrace.storage": "native"}
TOPIC = Topic(name="t", id=UUID(int=1), streams=("a", "b", "c"), config=CONFIG, created_ms=0)
RESOLVED = resolve(CONFIG, TopicDefaults())


def over(storage: Storage) -> StreamManager:
    leading = Leadership(Ownership(3), LeaderRegistry(3), storage.topics)
    return StreamManager(storage, leading, ManualClock(), lambda *_: "unused")


async def test_a_key_that_is_no_stream_takes_one_partition_offline(open_storage: OpenStorage, raw: Any) -> None:
    storage = await open_storage()
    await storage.topics.create(TOPIC)
    raw.delete("b")
    raw.set("b", "no stream")
    raw.xadd("c", {"value": "x"}, id="5-0")
    opened = await over(storage).open(TOPIC, RESOLVED, 1)
    assert [(each.index, each.offline is None, each.named.node_id) for each in opened] == [(1, False, 3), (2, True, 3)]
    assert opened[1].log_end == (5 << 10) + 1
    await opened[0].try_again()
    assert opened[0].offline is not None
    raw.delete("b")
    await opened[0].try_again()
    assert opened[0].offline is None
    for each in opened:
        each.close()


async def test_whether_a_partition_is_listed_is_asked_where_its_topic_has_moved(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await blue.topics.create(TOPIC)
    here, there = over(storage), over(blue)
    opened = await there.open(TOPIC, RESOLVED, 0)
    (first, *_) = natives_of(opened)
    listed = []
    for manager in (here, there):
        manager.adopt("t", opened)
        listed.append(await first.listed())
    assert listed == [False, True]
    for each in opened:
        each.close()
