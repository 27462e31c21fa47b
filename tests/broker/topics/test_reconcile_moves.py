"""Topics that another broker has moved to another virtual cluster: at no time does this one know of no such topic."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import redis.asyncio
from tests.broker.several_clusters import World, append, stored
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker import virtual_clusters
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.reconcile import refresh
from headrace.broker.virtual_clusters import DEFAULT, VirtualClusters
from headrace.records.batch import number
from headrace.records.build import build
from headrace.storage.layout.keys import producers_of
from headrace.topics.errors import UnknownTopic
from headrace.topics.model import Appended


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url)
    await world.start()
    await world.clusters.create("blue", {"log.retention.hours": "1"})
    yield world
    await world.stop()


async def _moved_elsewhere(world: World, live: LiveTopic, source: str, target: str) -> None:
    """Another broker moves a topic; this one has taken over the document of it."""
    await world.storage.documents.save(
        {(virtual_clusters.MOVED_TOPICS, virtual_clusters.moved_topic(source, live.topic.name)): b""}
    )
    await world.storage.move_topic(live.topic, source, target)
    await world.clusters.refresh_clusters()


def _is_known(clusters: VirtualClusters, topic_id: UUID) -> bool:
    try:
        clusters.holding(topic_id, DEFAULT)
    except UnknownTopic:
        return False
    return True


@pytest.mark.parametrize("places", [[(DEFAULT, "t"), ("blue", "t")], [(DEFAULT, "t")], None])
async def test_a_topic_that_another_broker_moves_is_handed_over_open_as_it_is(
    world: World, places: list[tuple[str, str]] | None
) -> None:
    clusters = world.clusters
    live = await clusters.default.topics.create("t", 1, {})
    await append(clusters.default, "t", b"1")
    await _moved_elsewhere(world, live, DEFAULT, "blue")
    world.told.clear()
    await clusters.take_moves(places)
    assert world.told == [("added", "blue/t")]
    blue = clusters.get("blue")
    assert blue.topics.get("t") is live
    assert live.config.retention_ms == 3_600_000
    assert not clusters.default.topics.has("t")
    assert await append(blue, "t", b"2") == 1
    # Nothing is left to be done.
    for broker in (clusters.default, blue):
        await refresh(broker.topics, "t")
    assert world.told == [("added", "blue/t")]
    assert await stored(blue, "t") == 2


async def test_what_another_broker_has_deleted_makes_room_for_what_it_has_moved(world: World) -> None:
    clusters = world.clusters
    live = await clusters.default.topics.create("t", 1, {})
    there = await clusters.get("blue").topics.create("t", 1, {})
    await world.storage.in_cluster("blue").topics.delete(there.topic)
    await _moved_elsewhere(world, live, DEFAULT, "blue")
    await clusters.take_moves([("blue", "t"), (DEFAULT, "t")])
    assert clusters.get("blue").topics.get("t") is live
    assert not _is_known(clusters, there.topic.id)


async def test_what_is_where_it_was_stays_and_what_is_gone_is_not_looked_for(world: World) -> None:
    clusters = world.clusters
    live = await clusters.default.topics.create("t", 1, {})
    await _moved_elsewhere(world, live, DEFAULT, "blue")
    await clusters.take_moves()
    later = await clusters.default.topics.create("t", 1, {})
    await clusters.take_moves()
    assert clusters.default.topics.get("t") is later
    assert clusters.get("blue").topics.get("t") is live
    await world.storage.topics.delete(later.topic)
    await clusters.take_moves()
    # A refresh correctly treats it as deleted.
    assert clusters.default.topics.get("t") is later
    await refresh(clusters.default.topics, "t")
    assert not _is_known(clusters, later.topic.id)
    assert _is_known(clusters, live.topic.id)


async def test_producers_of_a_moved_topic_are_written_down_when_its_first_cluster_is_gone(world: World) -> None:
    """Else an opening would read each batch since."""
    clusters = world.clusters
    red = await clusters.create("red", {})
    await red.topics.create("t", 1, {})
    await clusters.move("t", "red", "blue")
    await clusters.delete("red")
    blue = clusters.get("blue")
    batch = build([(None, b"1", 1, ())])
    number(batch, 7, 0, 0)
    answers: list[Appended | Exception] = []
    blue.append("t", 0, batch, answers.append)
    await until(lambda: bool(answers))
    await blue.hand_over()
    async with redis.asyncio.from_url(world.url) as link:
        assert await link.hkeys(producers_of(blue.topics.partition("t", 0).stream)) == [b"7"]
