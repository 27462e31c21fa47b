"""Instances over a real Valkey and a clock that is moved by hand: what is read, what is kept, what a restart leaves."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import redis.asyncio
from tests.broker.world import BEGINNING, TIMEOUT_MS, World
from tests.harness.basket import Basket

from headrace.broker.coordinator.group_runner import Dropping
from headrace.broker.coordinator.instances import InstanceError, InstanceProblem, Start, StartKind
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.scheduler import SLICE_S
from headrace.groups.effects import Effect
from headrace.groups.events import Event
from headrace.groups.group import Group
from headrace.groups.instances.events import Get
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.topics.errors import StorageUnavailable


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


async def test_others_have_their_turn_behind_what_was_planned_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of partitions; the first slice of reading them came in the same turn of the loop."""
    now, done, handle = [0.0], list[str](), Group.handle
    monkeypatch.setattr("headrace.broker.runtime.scheduler.perf_counter", lambda: now[0])
    await world.topic()
    _, cursor = await world.get(await world.cursor())
    await world.put(3)

    def planned_for_long(group: Group, event: Event, *times: Any) -> list[Effect]:
        if isinstance(event, Get):
            now[0] += SLICE_S
            world.broker.lane.later(lambda: done.append("another"))
        return handle(group, event, *times)

    class Reading(Basket):
        async def take(self, *read: Any) -> int:
            done.append("read")
            return await super().take(*read)

    monkeypatch.setattr(Group, "handle", planned_for_long)
    basket = Reading()
    await world.broker.instances.get(world.flights, cursor, basket, 1)
    assert (basket.offsets, done) == ([0, 1, 2], ["another", "read"])


async def test_a_partition_that_cannot_be_read_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on an unavailable shard of a cluster."""
    await world.topic(3)
    a = await world.cursor()
    for partition in range(3):
        await world.put(5, partition)
    away = {0, 1}
    check = LeaderPartition.check_readable

    def check_readable(log: LeaderPartition, offset: int) -> None:
        if log.index in away:
            raise StorageUnavailable("no connection to Redis")
        check(log, offset)

    monkeypatch.setattr(LeaderPartition, "check_readable", check_readable)
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


async def test_a_description_looks_at_all_positions_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """During a drop the offsets are a copy: one per partition delayed every other client."""
    await world.topic(4)
    await world.cursor()
    looks = 0

    def without(
        _: Dropping, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        nonlocal looks
        looks += 1
        return positions

    monkeypatch.setattr(Dropping, "without", without)
    assert len(await world.broker.instances.describe(world.flights, "g")) == 4
    assert looks == 1


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


async def test_writes_that_storage_refuses_are_refused_and_not_remembered(world: World) -> None:
    await world.topic()
    await world.put(10)
    _, cursor = await world.get(await world.cursor(), 5)
    world.groups.refuses = True
    with pytest.raises(InstanceError) as caught:
        await world.get(cursor, 5)
    assert caught.value.kind is InstanceProblem.UNAVAILABLE
    assert caught.value.message == "the group is not available: the connection was lost"
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


async def test_positions_are_mirrored_for_those_who_look_into_redis(world: World) -> None:
    await world.topic()
    await world.put(3)
    _, cursor = await world.get(await world.cursor())
    await world.get(cursor)
    await world.broker.groups.mirror.settle()
    async with redis.asyncio.from_url(world.url) as link:
        (group,) = await link.xinfo_groups(world.flights.topic.streams[0])

    assert group["last-delivered-id"].endswith(b"-3")


async def test_messages_delivered_after_a_restart_can_be_committed_after_the_next_one(world: World) -> None:
    """Under which leader epoch it was read is known for good by then: else it would seem lost."""
    await world.topic()
    await world.put(5)
    instances = world.broker.instances
    _, cursor = await world.get(await world.cursor(auto=False))
    cursor = await instances.commit(world.flights, cursor)
    await world.restart()
    # That nothing has come since is no news to be kept.
    _, cursor = await world.get(cursor)
    await world.put(2)
    world.groups.refuses = True
    with pytest.raises(InstanceError) as caught:
        await world.get(cursor)
    assert caught.value.kind is InstanceProblem.UNAVAILABLE
    world.groups.refuses = False
    basket, cursor = await world.get(cursor)
    assert basket.offsets == [5, 6]

    await world.restart()
    cursor = await world.broker.instances.commit(world.flights, cursor)
    assert (await world.get(cursor))[0].kept == []
    assert (await world.broker.instances.describe(world.flights, "g"))[0].committed == 7
