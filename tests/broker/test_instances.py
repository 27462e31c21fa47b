"""Instances over a real Valkey and a clock that is moved by hand: what is read, what is kept, what a restart leaves."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import uuid4

import msgspec
import pytest
import redis.asyncio
from tests.harness.basket import Basket
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.broker.dropping import Dropping
from headrace.broker.instances import GroupCursor, InstanceError, InstanceProblem, Start, StartKind
from headrace.broker.live import LiveTopic
from headrace.broker.log import LogPartition
from headrace.broker.settings import BrokerSettings
from headrace.groups.effects import CommitResult, DeleteGroupResult
from headrace.groups.events import Commit, DeleteGroup
from headrace.groups.model import GroupChange, Position, TopicPartition
from headrace.groups.settings import GroupSettings
from headrace.keyspace.keys import Keyspace
from headrace.records.build import build
from headrace.store.groups import RedisGroups
from headrace.store.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Appended

BEGINNING = Start(StartKind.TRIM_HORIZON)
TIMEOUT_MS = 30_000
HOUR_MS = 3_600_000
MOST_OFFSETS = 50
PLACE = TopicPartition("flights", 0)


class FailingGroups(RedisGroups):
    """A storage of groups that can be told to refuse, or to keep waiting, and counts what it writes."""

    refuses = False
    saved = 0
    gate: asyncio.Event | None = None

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses:
            raise StorageUnavailable("the connection was lost")
        self.saved += 1
        await super().save(group, changes, view)


class World:
    """One server after the other over the same Valkey."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.epoch = 0
        self.clock = ManualClock()
        self.broker: Broker
        self.storage: RedisStorage
        self.groups: FailingGroups

    async def start(self) -> None:
        self.epoch += 1
        link = redis.asyncio.from_url(self.url)
        await link.set(Keyspace().epoch, self.epoch)
        self.storage = storage = await RedisStorage.open(self.url, link, self.epoch)
        self.groups = storage.groups = FailingGroups(storage.scripts, Keyspace(), storage.fence)
        self.broker = Broker(
            storage,
            BrokerSettings.of({}),
            self.clock,
            cluster_id="c",
            stream_of=lambda name, _, index: Keyspace().stream(name, index),
        )
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.storage.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def topic(self, partitions: int = 1, name: str = "flights") -> LiveTopic:
        return await self.broker.topics.create(name, partitions, {"retention.ms": str(24 * HOUR_MS)})

    @property
    def flights(self) -> LiveTopic:
        return self.broker.topics.get("flights")

    async def put(self, count: int, partition: int = 0, *, codec: int = 0, topic: str = "flights") -> None:
        """One batch of `count` records with the present time."""
        first = self.broker.topics.partition(topic, partition).log_end
        made = [(None, b"%d" % number, self.clock.now_ms(), ()) for number in range(first, first + count)]
        done: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
        self.broker.append(topic, partition, build(made, codec=codec), done.set_result)
        assert isinstance(await done, Appended)

    async def cursor(self, instance: str = "a", start: Start = BEGINNING, *, auto: bool = True) -> GroupCursor:
        return await self.broker.instances.create_cursor(self.flights, "g", instance, start, TIMEOUT_MS, auto)

    async def get(self, cursor: GroupCursor, limit: int = 10**9) -> tuple[Basket, GroupCursor]:
        basket = Basket(limit)
        return basket, await self.broker.instances.get(self.flights, cursor, basket, MOST_OFFSETS)

    async def silence(self) -> None:
        """Everybody is out, and Redis knows it."""
        self.clock.advance(TIMEOUT_MS + 1)
        while any(each.instance for each in await self.broker.instances.describe(self.flights, "g")):
            await asyncio.sleep(0.001)


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url)
    await world.start()
    yield world
    await world.stop()


async def test_the_documented_example_over_a_restart_of_the_server(world: World) -> None:
    await world.topic()
    await world.put(150)
    await world.put(50)
    first, cursor = await world.get(await world.cursor("A"), 100)
    second, cursor = await world.get(cursor, 100)
    assert (first.offsets, second.offsets) == (list(range(100)), list(range(100, 200)))
    assert (await world.broker.instances.describe(world.flights, "g"))[0].committed == 100
    await world.restart()
    other = await world.cursor("B")
    nothing, other = await world.get(other)
    assert nothing.kept == []
    world.clock.advance(TIMEOUT_MS + 1)

    # From Redis now: the cached tail went with the first server.
    basket, _ = await world.get(other)
    assert basket.offsets == list(range(100, 200))
    assert basket.values[0] == b"100"


@pytest.mark.parametrize("codec", [0, 1])
async def test_a_limit_within_a_batch_goes_on_within_it(world: World, codec: int) -> None:
    await world.topic()
    for _ in range(3):
        await world.put(10, codec=codec)
    cursor = await world.cursor()
    seen: list[int] = []
    for turn in range(5):
        basket, cursor = await world.get(cursor, 7)
        seen += basket.offsets
        if turn == 2:
            await world.restart()

    assert seen == list(range(30))
    assert (await world.get(cursor))[0].kept == []


async def test_all_partitions_of_an_instance_are_read_and_all_instances_together_read_all(world: World) -> None:
    await world.topic(4)
    a, b = await world.cursor("a"), await world.cursor("b")
    a, b = (await world.get(a))[1], (await world.get(b))[1]
    a = (await world.get(a))[1]
    for partition in range(4):
        await world.put(5, partition)
    baskets = [(await world.get(a))[0], (await world.get(b))[0]]

    assert [len(basket.kept) for basket in baskets] == [10, 10]
    everything = {(partition, offset) for basket in baskets for partition, offset, _ in basket.kept}
    assert everything == {(partition, offset) for partition in range(4) for offset in range(5)}
    holders = [each.instance for each in await world.broker.instances.describe(world.flights, "g")]
    assert sorted(holders, key=str) == ["a", "a", "b", "b"]


async def test_a_partition_that_cannot_be_read_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies on a shard of a cluster that is away."""
    await world.topic(3)
    a = await world.cursor()
    for partition in range(3):
        await world.put(5, partition)
    away = {0, 1}
    check = LogPartition.check_readable

    def check_readable(log: LogPartition, offset: int) -> None:
        if log.index in away:
            raise StorageUnavailable("no connection to Redis")
        check(log, offset)

    monkeypatch.setattr(LogPartition, "check_readable", check_readable)
    basket, a = await world.get(a)
    assert {partition for partition, _, _ in basket.kept} == {2}
    with pytest.raises(InstanceError, match="no connection to Redis"):
        await world.get(a)
    away.clear()
    basket, _ = await world.get(a)
    assert {(partition, offset) for partition, offset, _ in basket.kept} == {(p, o) for p in (0, 1) for o in range(5)}


async def test_starts_are_durable_when_the_cursor_is_answered(world: World) -> None:
    await world.topic(2)
    await world.put(4, 0)
    await world.put(4, 1)
    cursor = await world.cursor("a", Start(StartKind.LATEST))
    await world.restart()
    await world.put(2, 1)

    assert {each.partition: each.committed for each in await world.broker.instances.describe(world.flights, "g")} == {
        0: None,
        1: None,
    }
    assert (await world.get(cursor))[0].offsets == [4, 5]


async def test_a_start_by_time(world: World) -> None:
    await world.topic()
    times = []
    for _ in range(3):
        times.append(world.clock.now_ms())
        await world.put(2)
        world.clock.advance(1_000)

    assert (await world.get(await world.cursor("a", Start(StartKind.AT_TIME, times[1]))))[0].offsets == [2, 3, 4, 5]
    await world.broker.instances.update(world.flights, "g", Start(StartKind.AT_TIME, times[2] - 1))
    assert (await world.get(await world.cursor()))[0].offsets == [4, 5]


async def test_a_start_at_a_time_to_come(world: World) -> None:
    await world.topic()
    await world.put(3)
    then = world.clock.now_ms() + 10_000
    cursor = await world.cursor("a", Start(StartKind.AT_TIME, then))
    world.clock.advance(5_000)
    await world.put(1)
    await world.restart()
    basket, cursor = await world.get(cursor)
    assert basket.kept == []
    world.clock.advance(5_000)
    await world.put(2)
    basket, cursor = await world.get(cursor)
    assert basket.offsets == [4, 5]
    await world.get(cursor)
    assert (await world.broker.instances.describe(world.flights, "g"))[0].committed == 6


async def test_a_restarted_server_knows_who_has_what_and_a_new_epoch_fences_the_old_one(world: World) -> None:
    await world.topic(4)
    a, b = (await world.get(await world.cursor("a")))[1], (await world.get(await world.cursor("b")))[1]
    a = (await world.get(a))[1]
    before = [each.instance for each in await world.broker.instances.describe(world.flights, "g")]
    old_broker, old_storage = world.broker, world.storage
    await world.start()
    after = await world.broker.instances.describe(world.flights, "g")
    assert [each.instance for each in after] == before
    assert {each.reserved_until_ms for each in after} == {world.clock.now_ms() + TIMEOUT_MS}
    with pytest.raises(InstanceError) as caught:
        await old_broker.instances.create_cursor(world.flights, "g", "c", BEGINNING, TIMEOUT_MS, True)
    assert caught.value.kind is InstanceProblem.UNAVAILABLE
    await old_broker.stop()
    await old_storage.close()
    for cursor in (a, b):
        assert (await world.get(cursor))[0].kept == []


async def test_nothing_is_left_of_an_earlier_topic_of_the_name(world: World) -> None:
    """The topic is deleted and made again while nobody has its groups; they would begin at the old positions."""
    live = await world.topic()
    await world.put(3)
    _, cursor = await world.get(await world.cursor())
    await world.get(cursor)
    committed = Commit(
        token=object(), generation=-1, member_id="", instance_id=None, positions={PLACE: Position(offset=2)}
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


async def test_a_description_looks_at_all_positions_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a drop waits they are a copy: one for each partition held everybody up."""
    await world.topic(4)
    await world.cursor()
    looks = 0

    def without(_: Dropping, positions: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, Position]:
        nonlocal looks
        looks += 1
        return positions

    monkeypatch.setattr(Dropping, "without", without)
    assert len(await world.broker.instances.describe(world.flights, "g")) == 4
    assert looks == 1


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

    async def make(group: str, most: int | None = 50) -> GroupCursor:
        return await instances.create_cursor(flights, group, "a", BEGINNING, TIMEOUT_MS, True, most)

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
    assert (await make("another", None)).incarnation == 1
    # Another topic counts for itself, and Kafka's groups do not count.
    other = await world.topic(name="weather")
    await instances.create_cursor(other, "g", "a", BEGINNING, TIMEOUT_MS, True)
    commit = Commit(
        token=object(),
        generation=-1,
        member_id="",
        instance_id=None,
        positions={TopicPartition("flights", 0): Position(offset=0)},
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


async def test_a_position_that_retention_overtook(world: World) -> None:
    await world.topic()
    await world.put(10)
    _, cursor = await world.get(await world.cursor(), 2)
    partition = world.flights.partitions[0]
    await world.broker.delete_records(partition, 1)
    # Nothing is committed yet: what was asked for is the oldest record there is.
    assert (await world.get(await world.cursor("a"), 2))[0].offsets == [1, 2]
    _, cursor = await world.get((await world.get(await world.cursor("a"), 2))[1], 1)
    await world.broker.delete_records(partition, 6)
    with pytest.raises(InstanceError) as caught:
        await world.get(cursor)

    assert caught.value.kind is InstanceProblem.BEHIND_LOG_START
    await world.broker.instances.update(world.flights, "g", BEGINNING)
    assert (await world.get(cursor))[0].offsets == [6, 7, 8, 9]


async def test_a_get_whose_client_goes_away_holds_nothing_back(world: World) -> None:
    await world.topic(2)
    await world.put(3, 0)
    await world.put(3, 1)
    a = await world.cursor("a")
    world.groups.gate = asyncio.Event()
    going = asyncio.ensure_future(world.get(a))
    await asyncio.sleep(0)
    going.cancel()
    await asyncio.wait([going])
    world.groups.gate.set()
    await world.broker.instances.heartbeat(world.flights, await world.cursor("b"))
    # What it would have read was never delivered: a sign of life is enough to give up.
    await world.broker.instances.heartbeat(world.flights, a)

    holders = [each.instance for each in await world.broker.instances.describe(world.flights, "g")]
    assert sorted(holders, key=str) == ["a", "b"]


async def test_an_instance_that_asked_in_time_is_not_silent_because_storage_was_slow(world: World) -> None:
    await world.topic(2)
    a, b, late = [(await world.get(await world.cursor(name)))[1] for name in ("a", "b", "late")]
    world.clock.advance(TIMEOUT_MS - 1)
    world.groups.gate = asyncio.Event()
    creating = asyncio.ensure_future(world.cursor("somebody else"))
    await asyncio.sleep(0)
    beats = [asyncio.ensure_future(world.broker.instances.heartbeat(world.flights, cursor)) for cursor in (a, b)]
    await asyncio.sleep(0)
    world.clock.advance(TIMEOUT_MS)
    beats.append(asyncio.ensure_future(world.broker.instances.heartbeat(world.flights, late)))
    await asyncio.sleep(0)
    world.groups.gate.set()
    await asyncio.gather(creating, *beats)

    # Who came too late is out, and in again at once, behind those who waited.
    group = world.broker.groups.describe("g")
    assert group is not None
    assert [member.client_id for member in group.members] == ["a", "b", "late"]
    holders = [each.instance for each in await world.broker.instances.describe(world.flights, "g")]
    assert sorted(holders, key=str) == ["a", "b"]


async def test_what_storage_refuses_is_refused_and_not_remembered(world: World) -> None:
    await world.topic()
    await world.put(10)
    _, cursor = await world.get(await world.cursor(), 5)
    world.groups.refuses = True
    with pytest.raises(InstanceError) as caught:
        await world.get(cursor, 5)
    assert caught.value.kind is InstanceProblem.UNAVAILABLE
    assert (await world.broker.instances.describe(world.flights, "g"))[0].committed is None
    with pytest.raises(InstanceError):
        await world.broker.instances.create_cursor(world.flights, "h", "a", BEGINNING, TIMEOUT_MS, True)
    assert world.broker.instances.groups_of(world.flights) == ["g"]

    world.groups.refuses = False
    again, cursor = await world.get(cursor, 5)
    assert again.offsets == [5, 6, 7, 8, 9]
    assert (await world.broker.instances.describe(world.flights, "g"))[0].committed == 5


async def test_reading_costs_no_write_but_for_commits(world: World) -> None:
    await world.topic()
    _, cursor = await world.get(await world.cursor())
    before = world.groups.saved
    for _ in range(50):
        _, cursor = await world.get(cursor)
        await world.broker.instances.heartbeat(world.flights, cursor)
    assert world.groups.saved == before
    await world.put(1)
    _, cursor = await world.get(cursor)
    assert world.groups.saved == before
    await world.get(cursor)
    assert world.groups.saved == before + 1


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


async def test_a_group_made_while_it_is_being_deleted_is_made_anew(world: World) -> None:
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


async def test_positions_are_mirrored_for_those_who_look_into_redis(world: World) -> None:
    await world.topic()
    await world.put(3)
    _, cursor = await world.get(await world.cursor())
    await world.get(cursor)
    await world.broker.groups.mirror.settle()
    async with redis.asyncio.from_url(world.url) as link:
        (group,) = await link.xinfo_groups(world.flights.topic.streams[0])

    assert group["last-delivered-id"].endswith(b"-3")
