"""A native partition of a share group: what wakes waiting members, and what a member is given."""

import asyncio
from typing import Any

import pytest
from tests.conftest import OpenStorage
from tests.harness.plain import KEY, STREAM
from tests.harness.waiting import until

from headrace.broker.native.partition import NativePartition
from headrace.broker.native.shares import NativeShare
from headrace.broker.runtime.budget import NeedsRoom
from headrace.groups.configs import GroupConfig, OffsetReset
from headrace.storage.layout.native import offset_at
from headrace.testing.clock import ManualClock
from headrace.topics.errors import UnknownTopic
from headrace.topics.native import RELEASED, Acknowledgement, Delivered, Outcome, SharePosition

GROUP = "group"
LOCK_MS = 30_000
LIMIT = 1 << 20


class World:
    """A share partition, and a member that waits."""

    def __init__(self, partition: NativePartition, raw: Any) -> None:
        self.clock = ManualClock()
        self.config = GroupConfig(
            share_auto_offset_reset=OffsetReset.parse("earliest"),
            share_partition_max_record_locks=100,
            share_delivery_count_limit=2,
        )
        self.partition, self.raw = partition, raw
        self.share = NativeShare(GROUP, partition, lambda: self.config, self.clock)
        self.woken = 0
        self.share.watch(self.wake)

    def wake(self) -> None:
        self.woken += 1

    def add(self, count: int = 1, value: bytes = b"v") -> list[int]:
        return [offset_at(self.raw.xadd(KEY, {"value": value}).encode()) for _ in range(count)]

    async def acquire(self, member: str = "a", count: int = 500, first: int | None = None) -> list[int]:
        await self.share.begin()
        read = await self.share.acquire(member, count, LIMIT, first)
        return [offset for each in read.acquired for offset in range(each.first, each.last + 1)]

    async def acknowledge(self, member: str, outcome: Outcome, *offsets: int) -> list[Delivered] | None:
        given = [Acknowledgement(offset, offset, outcome) for offset in offsets]
        return await self.share.acknowledge(member, given)

    def end_locks(self) -> None:
        """Let Redis' clock reach the end of the locks."""
        for each in self.raw.xpending_range(KEY, GROUP, "-", "+", 1_000):
            self.raw.xclaim(KEY, GROUP, each["consumer"], 0, [each["message_id"]], idle=LOCK_MS, justid=True)


@pytest.fixture
async def world(open_storage: OpenStorage, raw: Any) -> World:
    storage = await open_storage()
    extent = await storage.native.open(STREAM)
    return World(NativePartition("t", 0, STREAM, extent, storage.native), raw)


async def test_an_entry_of_a_program_wakes_a_waiting_member(world: World) -> None:
    assert await world.acquire() == []
    added = world.add(2)
    await until(lambda: world.woken > 0)
    assert await world.acquire() == added


async def test_released_entries_wake_a_waiting_member_at_once(world: World) -> None:
    added = world.add(3)
    await world.acquire("a")
    before = world.woken
    assert await world.acknowledge("a", Outcome.DONE, added[0]) == []
    assert world.woken == before, "nothing is available"
    assert await world.acknowledge("a", Outcome.RELEASE, added[1]) == []
    assert world.woken > before
    assert await world.acquire("b") == [added[1]]
    before = world.woken
    assert await world.share.release("b") == [Delivered(added[1], added[1], 2)]
    assert await world.share.release("a") == []
    assert world.woken > before
    assert await world.acquire("b") == [added[2]]


async def test_room_in_the_window_wakes_a_waiting_member(world: World) -> None:
    added = world.add(101)
    await world.acquire("a")
    assert await world.acquire("b") == []
    before = world.woken
    await world.acknowledge("a", Outcome.DONE, added[7])
    assert world.woken > before
    assert await world.acquire("b") == added[100:]


async def test_the_end_of_a_lock_wakes_a_waiting_member(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    assert await world.acquire("b") == []
    world.end_locks()
    assert await world.acquire("b") == [], "locks are looked for when one may have ended"
    world.clock.advance(LOCK_MS - 1_000)
    await world.acquire("b", 1)
    before = world.woken
    world.clock.advance(1_100)
    assert world.woken > before
    assert await world.acquire("b") == added[1:]


async def test_entries_of_a_program_that_ended_are_found_by_polls(world: World) -> None:
    [offset] = world.add(1)
    assert await world.acquire("a", 1) == [offset]
    await world.acknowledge("a", Outcome.DONE, offset)
    [offset] = world.add(1)
    world.raw.xreadgroup(GROUP, "program", {KEY: ">"})
    assert await world.acquire("a") == []
    world.end_locks()
    before = world.woken
    world.clock.advance(1_100)
    assert world.woken > before
    assert await world.acquire("a") == [offset]


async def test_a_renewed_lock_ends_later(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    world.clock.advance(LOCK_MS - 500)
    assert await world.acknowledge("a", Outcome.RENEW, *added) == []
    world.clock.advance(600)
    assert await world.acquire("b") == []
    world.end_locks()
    world.clock.advance(LOCK_MS)
    assert await world.acquire("b") == added


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("earliest", [0, 1, 2]), ("latest", []), ("by_duration:PT10S", [1, 2]), ("by_duration:P9D", [0, 1, 2])],
)
async def test_a_new_group_begins_where_its_configuration_says(world: World, reset: str, expected: list[int]) -> None:
    world.config = GroupConfig(share_auto_offset_reset=OffsetReset.parse(reset))
    now = world.clock.now_ms()
    ages = (60_000, 5_000, 1_000)
    ids = [world.raw.xadd(KEY, {"value": "v"}, id=f"{now - age}-0") for age in ages]
    assert await world.acquire() == [offset_at(ids[place].encode()) for place in expected]
    later = offset_at(world.raw.xadd(KEY, {"value": "v"}, id=f"{now + 1}-0").encode())
    assert await world.acquire() == [later]


async def test_a_large_record_waits_for_room(world: World) -> None:
    [large] = world.add(1, bytes(50_000))
    with pytest.raises(NeedsRoom) as needed:
        await world.acquire(first=10_000)
    assert await world.acquire(first=needed.value.size) == [large]


async def test_a_group_that_a_program_destroyed_begins_again(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    world.raw.xgroup_destroy(KEY, GROUP)
    assert await world.acknowledge("a", Outcome.DONE, *added) is None
    assert await world.acquire("a") == added


async def test_no_member_can_be_the_consumer_of_released_entries(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    await world.acknowledge("a", Outcome.RELEASE, *added)
    assert await world.acquire(RELEASED) == []
    assert await world.acknowledge(RELEASED, Outcome.DONE, *added) is None
    assert await world.share.release(RELEASED) == []
    assert await world.acquire("a") == added


async def test_position_alter_and_delete(world: World) -> None:
    added = world.add(3)
    assert await world.share.describe() is None
    await world.acquire("a", 2)
    assert await world.share.describe() == SharePosition(added[0], 3)
    before = world.woken
    await world.share.alter(added[2])
    assert world.woken > before
    assert await world.acquire("a") == added[2:]
    await world.share.release("a")
    assert await world.share.delete()
    assert await world.share.describe() is None


async def test_a_disconnected_client_leaves_what_it_acquired_to_the_end_of_its_session(world: World) -> None:
    added = world.add(2)
    reading = asyncio.ensure_future(world.acquire("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reading.cancel()
    await world.share.release("a")
    assert await world.acquire("b") == added


async def test_a_deleted_topic_wakes_and_refuses(world: World) -> None:
    before = world.woken
    world.partition.close()
    assert world.woken > before
    with pytest.raises(UnknownTopic):
        await world.share.acquire("a", 1, LIMIT)
    with pytest.raises(UnknownTopic):
        await world.acknowledge("a", Outcome.DONE, 1)
    assert await world.share.release("a") == []


async def test_unwatched_members_are_not_woken(world: World) -> None:
    added = world.add(1)
    await world.acquire()
    world.share.unwatch(world.wake)
    before = world.woken
    await world.acknowledge("a", Outcome.RELEASE, *added)
    world.clock.advance(2 * LOCK_MS)
    assert world.woken == before
