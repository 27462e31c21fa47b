"""The groups that instances make: how many there may be, and how one ends, with its topic too."""

import asyncio
from uuid import uuid4

import msgspec
import pytest
import redis.asyncio
from tests.broker.world import BEGINNING, HOUR_MS, MOST_OFFSETS, TIMEOUT_MS, World
from tests.harness.basket import Basket

from headrace.broker.coordinator.instances import GroupCursor, InstanceError, InstanceProblem
from headrace.groups.effects import CommitResult, DeleteGroupResult
from headrace.groups.events import Commit, DeleteGroup
from headrace.groups.model import GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import UnknownTopic

PLACE = TopicPartition("flights", 0)


async def test_a_group_more_than_the_server_takes_is_refused(world: World) -> None:
    await world.topic()
    world.broker.groups.settings = GroupSettings(max_groups=1)
    make = world.broker.instances.create_cursor
    await make(world.flights, "a", "i", BEGINNING, TIMEOUT_MS, True)
    with pytest.raises(InstanceError, match=r"headrace\.max\.groups") as refused:
        await make(world.flights, "b", "i", BEGINNING, TIMEOUT_MS, True)
    assert refused.value.kind is InstanceProblem.TOO_MANY_GROUPS
    await make(world.flights, "a", "j", BEGINNING, TIMEOUT_MS, True)


async def test_the_51st_group_is_refused_and_the_others_still_open(world: World) -> None:
    await world.topic()
    flights, instances = world.flights, world.broker.instances

    async def make(group: str) -> GroupCursor:
        return await instances.create_cursor(flights, group, "a", BEGINNING, TIMEOUT_MS, True)

    # All at once: places are kept while groups are being made.
    results = await asyncio.gather(*(make(f"g{number:02}") for number in range(60)), return_exceptions=True)
    made = [result for result in results if isinstance(result, GroupCursor)]
    refused = [result for result in results if isinstance(result, InstanceError)]
    assert (len(made), len(refused)) == (50, 10)
    assert {error.kind for error in refused} == {InstanceProblem.TOO_MANY_GROUPS}
    assert instances.groups_of(flights) == sorted(cursor.group for cursor in made)

    assert (await make(made[0].group)).incarnation == 2
    with pytest.raises(InstanceError):
        await make("another")
    # Another topic counts for itself, and Kafka's groups do not count.
    other = await world.topic(name="weather")
    await instances.create_cursor(other, "g", "a", BEGINNING, TIMEOUT_MS, True)
    commit = Commit(
        token=object(),
        generation=-1,
        member_id="",
        instance_id=None,
        positions={PLACE: OffsetAndMetadata(offset=0)},
    )
    assert isinstance(await world.broker.groups.request("kafka", commit), CommitResult)
    assert world.broker.groups.exists("kafka")


async def test_an_unused_group_goes_and_makes_room(world: World) -> None:
    await world.topic()
    await world.cursor()
    world.clock.advance(24 * HOUR_MS - 1)
    assert world.broker.instances.groups_of(world.flights) == ["g"]
    world.clock.advance(1)
    while world.broker.groups.exists("g"):
        await asyncio.sleep(0.001)

    assert world.broker.instances.groups_of(world.flights) == []
    assert await world.storage.groups.load() == []
    with pytest.raises(InstanceError) as caught:
        await world.broker.instances.describe(world.flights, "g")
    assert caught.value.kind is InstanceProblem.UNKNOWN_GROUP


async def test_a_group_created_during_its_deletion_is_new(world: World) -> None:
    await world.topic()
    await world.cursor()
    deleting = asyncio.ensure_future(world.broker.groups.request("g", DeleteGroup(object())))
    await asyncio.sleep(0)
    cursor = await world.cursor("b")
    result = await deleting

    assert isinstance(result, DeleteGroupResult)
    assert result.error is None
    assert cursor.incarnation == 1
    assert world.broker.instances.groups_of(world.flights) == ["g"]
    assert (await world.get(cursor))[0].kept == []


async def test_asking_for_a_group_that_is_not_there_leaves_none_behind(world: World) -> None:
    await world.topic()
    cursor = await world.cursor()
    stranger = GroupCursor(
        group="nobody", instance="a", incarnation=1, epoch=0, generation=0, timeout_ms=1, commit_on_get=True
    )
    instances, flights = world.broker.instances, world.flights
    calls = (
        instances.get(flights, stranger, Basket(), MOST_OFFSETS),
        instances.commit(flights, stranger),
        instances.heartbeat(flights, stranger),
        instances.update(flights, "nobody", BEGINNING),
    )
    for call in calls:
        with pytest.raises(InstanceError) as caught:
            await call
        assert caught.value.kind is InstanceProblem.UNKNOWN_GROUP
    assert not world.broker.groups.exists("nobody")
    assert (await world.get(cursor))[0].kept == []


async def test_a_deleted_topic_ends_its_groups(world: World) -> None:
    await world.topic()
    await world.put(1)
    flights, cursor = world.flights, await world.cursor()
    await world.broker.topics.delete("flights")
    with pytest.raises((InstanceError, UnknownTopic)):
        await world.broker.instances.get(flights, cursor, Basket(), MOST_OFFSETS)
    while world.broker.groups.exists("g"):
        await asyncio.sleep(0.001)
    again = await world.topic()
    assert world.broker.instances.groups_of(again) == []


async def test_a_section_whose_topic_went_with_a_crash_is_dropped_at_the_start(world: World) -> None:
    await world.topic()
    await world.cursor()
    topic = world.flights.topic
    await world.stop()
    link = redis.asyncio.from_url(world.url)
    storage = await RedisStorage.open(world.url, link, world.epoch)
    await storage.topics.delete(topic)
    await storage.close()
    await world.start()
    while world.broker.groups.exists("g"):
        await asyncio.sleep(0.001)

    assert await world.storage.groups.load() == []


async def test_nothing_is_left_of_an_earlier_topic_of_the_name(world: World) -> None:
    """The topic is deleted and created again while no broker coordinates its groups; old offsets would apply to it."""
    live = await world.topic()
    await world.put(3)
    _, cursor = await world.get(await world.cursor())
    await world.get(cursor)
    committed = Commit(
        token=object(), generation=-1, member_id="", instance_id=None, positions={PLACE: OffsetAndMetadata(offset=2)}
    )
    assert isinstance(await world.broker.groups.request("k", committed), CommitResult)
    assert world.broker.groups.positions("g")[PLACE].offset == 3
    await world.broker.stop()
    await world.storage.topics.delete(live.topic)
    await world.storage.topics.create(msgspec.structs.replace(live.topic, id=uuid4()))
    await world.storage.close()
    await world.start()
    for name in ("g", "k"):
        assert world.broker.groups.positions(name) == {}
    while await world.storage.groups.load():
        await asyncio.sleep(0)
