"""One storage as several virtual clusters see it."""

from collections.abc import Awaitable, Callable, Iterator
from uuid import UUID

import pytest
import redis
from tests.harness.redis import RedisServer

from headrace.groups.model import Position, SavePositions, TopicPartition
from headrace.records.build import build
from headrace.store.storage import RedisStorage
from headrace.topics.errors import Fenced, TopicExists, UnknownTopic
from headrace.topics.model import Append, Appended, Topic

OpenStorage = Callable[..., Awaitable[RedisStorage]]
FLIGHTS = Topic(name="flights", id=UUID(int=1), streams=("headrace:flights:0",), config={}, created_ms=0)
BLUE = Topic(name="flights", id=UUID(int=2), streams=("headrace:blue:flights:0",), config={}, created_ms=0)


@pytest.fixture
def raw(any_redis: RedisServer) -> "Iterator[redis.Redis]":
    """A client that sees what is stored."""
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as link:
        yield link


async def test_each_cluster_has_its_own_topics_and_groups(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.create_topic(FLIGHTS)
    await blue.create_topic(BLUE)
    await storage.save_group("g", [SavePositions({TopicPartition("flights", 0): Position(offset=1)})])
    await blue.save_group("g", [SavePositions({TopicPartition("flights", 0): Position(offset=2)})])
    restarted = await open_storage(epoch=2)
    for view, topic, offset in ((restarted, FLIGHTS, 1), (restarted.in_cluster("blue"), BLUE, 2)):
        assert await view.load_topics() == [topic]
        assert [group.positions for group in await view.load_groups()] == [
            {TopicPartition("flights", 0): Position(offset=offset)}
        ]
    assert await restarted.in_cluster("default").load_topics() == [FLIGHTS]
    assert await restarted.in_cluster("red").load_topics() == []


async def test_a_deletion_in_one_cluster_leaves_the_other_alone(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.create_topic(FLIGHTS)
    await blue.create_topic(BLUE)
    await blue.delete_topic(BLUE)
    assert await storage.load_topics() == [FLIGHTS]
    assert await blue.load_topics() == []


async def test_what_is_common(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    assert [await view.allocate_producer_ids(10) for view in (storage, blue, storage)] == [0, 10, 20]
    await blue.save_documents({("a", "1"): b"x"})
    assert await storage.load_documents("a") == {"1": b"x"}


async def test_a_topic_moves_with_its_records(open_storage: OpenStorage) -> None:
    storage = await open_storage()
    blue = storage.in_cluster("blue")
    await storage.create_topic(FLIGHTS)
    answers: list[Appended | Exception] = []
    made = build([(None, b"x", 1, ())])
    storage.append(FLIGHTS.streams[0], Append(made, 1, 1), answers.append)
    await storage.move_topic(FLIGHTS, "default", "blue")
    blue.append(FLIGHTS.streams[0], Append(made, 1, 1), answers.append)
    await storage.ping()
    assert answers == [Appended(0), Appended(1)]
    assert (await storage.load_topics(), await blue.load_topics()) == ([], [FLIGHTS])
    assert len(await blue.read(FLIGHTS.streams[0], 0, 10)) == 2


async def test_moves_that_cannot_be(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    await storage.create_topic(FLIGHTS)
    await storage.in_cluster("blue").create_topic(BLUE)
    with pytest.raises(TopicExists):
        await storage.move_topic(FLIGHTS, "default", "blue")
    with pytest.raises(UnknownTopic):
        await storage.move_topic(FLIGHTS, "red", "blue")
    raw.set("headrace:{meta}:epoch", 2)
    with pytest.raises(Fenced):
        await storage.move_topic(FLIGHTS, "default", "red")
    assert await storage.load_topics() == [FLIGHTS]
    assert await storage.in_cluster("blue").load_topics() == [BLUE]
