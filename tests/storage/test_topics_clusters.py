"""One storage as several virtual clusters see it."""

from uuid import UUID

import msgspec
import pytest
import redis
from tests.conftest import OpenStorage
from tests.harness.logs import appended, opened

from headrace.groups.model import OffsetAndMetadata, SaveOffsets, TopicPartition
from headrace.records.build import build
from headrace.topics.errors import Fenced, TopicExists, UnknownTopic
from headrace.topics.model import Append, Appended, Topic

FLIGHTS = Topic(name="flights", id=UUID(int=1), streams=("headrace:flights:0",), config={}, created_ms=0)
BLUE = Topic(name="flights", id=UUID(int=2), streams=("headrace:blue:flights:0",), config={}, created_ms=0)


async def test_each_cluster_has_its_own_topics_and_groups(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.topics.create(FLIGHTS)
    await blue.topics.create(BLUE)
    await storage.groups.save("g", [SaveOffsets({TopicPartition("flights", 0): OffsetAndMetadata(offset=1)})])
    await blue.groups.save("g", [SaveOffsets({TopicPartition("flights", 0): OffsetAndMetadata(offset=2)})])
    restarted = await open_storage(epoch=2)
    for view, topic, offset in ((restarted, FLIGHTS, 1), (restarted.in_cluster("blue"), BLUE, 2)):
        assert await view.topics.load() == [topic]
        assert [group.positions for group in await view.groups.load()] == [
            {TopicPartition("flights", 0): OffsetAndMetadata(offset=offset)}
        ]
    assert await restarted.in_cluster("default").topics.load() == [FLIGHTS]
    assert await restarted.in_cluster("red").topics.load() == []


async def test_a_deletion_in_one_cluster_leaves_the_other_alone(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.topics.create(FLIGHTS)
    await blue.topics.create(BLUE)
    await blue.topics.delete(BLUE)
    assert await storage.topics.load() == [FLIGHTS]
    assert await blue.topics.load() == []


async def test_what_is_common(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    assert [await view.topics.allocate_producer_ids(10) for view in (storage, blue, storage)] == [0, 10, 20]
    await blue.documents.save({("a", "1"): b"x"})
    assert await storage.documents.load("a") == {"1": b"x"}


async def test_a_topic_moves_with_its_records(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.topics.create(FLIGHTS)
    log = await opened(storage, FLIGHTS.streams[0])
    assert await appended(log, Append(build([(None, b"x", 1, ())]), 1, 1)) == [Appended(0)]
    await storage.move_topic(FLIGHTS, "default", "blue")
    assert await appended(log, Append(build([(None, b"x", 1, ())]), 1, 1)) == [Appended(1)]
    assert (await storage.topics.load(), await blue.topics.load()) == ([], [FLIGHTS])
    assert len(await blue.logs.read(FLIGHTS.streams[0], 0, 10)) == 2


async def test_who_has_not_heard_of_a_move_deletes_nothing(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    await storage.topics.create(FLIGHTS)
    log = await opened(storage, FLIGHTS.streams[0])
    assert await appended(log, Append(build([(None, b"x", 1, ())]), 1, 1)) == [Appended(0)]
    await storage.move_topic(FLIGHTS, "default", "blue")
    with pytest.raises(UnknownTopic):
        await storage.topics.delete(FLIGHTS)
    blue = storage.in_cluster("blue")
    assert await blue.topics.load() == [FLIGHTS]
    assert len(await blue.logs.read(FLIGHTS.streams[0], 0, 10)) == 1


async def test_partitions_that_another_broker_has_added_go_with_the_topic(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    storage = await open_storage()
    await storage.topics.create(FLIGHTS)
    grown = msgspec.structs.replace(FLIGHTS, streams=(*FLIGHTS.streams, "headrace:flights:1"))
    await storage.topics.replace(grown, FLIGHTS)
    log = await opened(storage, grown.streams[1])
    assert await appended(log, Append(build([(None, b"x", 1, ())]), 1, 1)) == [Appended(0)]
    assert raw.exists(grown.streams[1])
    await storage.topics.delete(FLIGHTS)
    assert raw.keys("headrace:*flights*") == []


async def test_moves_that_cannot_be(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    await storage.topics.create(FLIGHTS)
    await storage.in_cluster("blue").topics.create(BLUE)
    with pytest.raises(TopicExists):
        await storage.move_topic(FLIGHTS, "default", "blue")
    with pytest.raises(UnknownTopic):
        await storage.move_topic(FLIGHTS, "red", "blue")
    raw.set("headrace:{meta}:epoch", 2)
    with pytest.raises(Fenced):
        await storage.move_topic(FLIGHTS, "default", "red")
    assert await storage.topics.load() == [FLIGHTS]
    assert await storage.in_cluster("blue").topics.load() == [BLUE]
