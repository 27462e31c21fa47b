"""A native partition of a share group: what wakes waiting members, and what a member is given."""

import asyncio
import time
from typing import Any

import pytest
from tests.conftest import OpenStorage
from tests.harness.plain import KEY, STREAM
from tests.harness.waiting import until

from headrace.broker.native.partition import NativePartition
from headrace.broker.native.shares import StreamShares
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.topics.live import LiveTopic
from headrace.groups.configs import GroupConfig, OffsetReset
from headrace.groups.sharing.partition import AckBatch, AcknowledgeType, AckProblem
from headrace.metrics.counters import ShareCounters
from headrace.records.walk import records
from headrace.storage.layout.native import offset_at
from headrace.testing.clock import ManualClock
from headrace.topics.errors import UnknownTopic
from headrace.topics.native import RELEASED, SharePosition

GROUP = "group"
LOCK_MS = 30_000
ACCEPT, RELEASE, RENEW = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.RENEW


def no_topic(name: str) -> LiveTopic:
    raise UnknownTopic(name)


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
        self.large = ReadBudget(1 << 30)
        topics = DeadLetterTopics(no_topic, "c", lambda: None, Decompression(), self.clock)
        self.shares = StreamShares(self.clock, self.large, topics)
        self.counters = ShareCounters()
        self.share = self.shares.open(GROUP, partition, lambda: self.config, self.counters)
        self.woken = 0
        self.share.watchers.watch(self.wake)

    def wake(self, _size: int) -> None:
        self.woken += 1

    def add(self, count: int = 1, value: bytes = b"v") -> list[int]:
        return [offset_at(self.raw.xadd(KEY, {"value": value}).encode()) for _ in range(count)]

    async def acquire(self, member: str = "a", count: int = 500, *, begin: bool = True) -> list[int]:
        """Offsets of the acquired records, which must be those of the batches."""
        if begin:
            await self.shares.begin(GROUP, self.partition, self.config, None)
        found = await self.share.fetch(member, count, 10_000, exact=False)
        offsets = [offset for each in found.acquired for offset in range(each.first, each.last + 1)]
        assert offsets == [record.offset for each in found.chunks for record in records(each, int.from_bytes(each[:8]))]
        assert found.size == sum(map(len, found.chunks))
        return offsets

    async def acknowledge(self, member: str, kind: AcknowledgeType, *offsets: int) -> object:
        batches = [AckBatch(offset, offset, bytes((kind.value,))) for offset in offsets]
        return await self.share.acknowledge(member, batches, renewing=True)

    async def release(self, member: str) -> None:
        """A session ends, and its records are released."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.share.release(member)
        self.share.retire(lambda: over.set_result(None))
        await over

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
    woken: list[int] = []
    world.partition.watch(woken.append)
    assert await world.acquire() == []
    assert not world.share.has_some()
    added = world.add(2)
    await until(lambda: bool(woken))
    assert world.share.has_some()
    assert await world.acquire() == added


async def test_released_entries_wake_a_waiting_member_at_once(world: World) -> None:
    added = world.add(3)
    await world.acquire("a")
    before = world.woken
    assert await world.acknowledge("a", ACCEPT, added[0]) is None
    assert world.woken == before, "nothing is available"
    assert await world.acknowledge("a", RELEASE, added[1]) is None
    assert world.woken > before
    assert await world.acquire("b") == [added[1]]
    before = world.woken
    await world.release("b")
    await world.release("a")
    assert world.woken > before
    assert await world.acquire("b") == [added[2]]


async def test_deliveries_are_counted_until_the_limit(world: World) -> None:
    added = world.add(2)
    for member in ("a", "b"):
        assert await world.acquire(member) == added
        await world.release(member)
    assert await world.acquire("c") == []
    counted = world.counters
    assert (counted.acquired, counted.redelivered, counted.given_up) == (4, 2, 2)


async def test_room_in_the_window_wakes_a_waiting_member(world: World) -> None:
    added = world.add(101)
    await world.acquire("a")
    assert await world.acquire("b") == []
    before = world.woken
    await world.acknowledge("a", ACCEPT, added[7])
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
    await world.acknowledge("a", ACCEPT, offset)
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
    assert await world.acknowledge("a", RENEW, *added) is None
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


async def test_a_large_record_is_read_with_memory_of_its_own(world: World) -> None:
    small, large, later = *world.add(1), *world.add(1, bytes(2 << 20)), *world.add(1)
    assert await world.acquire() == [small]
    async with world.large.held(world.large.limit):
        reading = asyncio.ensure_future(world.acquire())
        await asyncio.sleep(0.05)
        assert not reading.done()
    assert await reading == [large]
    assert world.large.used == 0
    assert await world.acquire() == [later]


async def test_a_group_that_a_program_destroyed_begins_again(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    world.raw.xgroup_destroy(KEY, GROUP)
    assert await world.acknowledge("a", ACCEPT, *added) is AckProblem.INVALID_RECORD_STATE
    assert await world.acquire("a") == added


async def test_a_group_without_members_is_refused(world: World) -> None:
    added = world.add(1)
    with pytest.raises(UnknownTopic):
        await world.acquire(begin=False)
    assert isinstance(await world.acknowledge("a", ACCEPT, *added), UnknownTopic)
    assert world.raw.xinfo_groups(KEY) == []


async def test_costly_requests_are_refused(world: World) -> None:
    """A million types would be a million arguments of a script, and a long ID is copied by each request."""
    added = world.add(1)
    await world.acquire("a")
    first = added[0]
    alternating = bytes((1, 2)) * 500_000
    began = time.perf_counter()
    wide = [AckBatch(first, first + len(alternating) - 1, alternating)]
    assert await world.share.acknowledge("a", wide, renewing=True) is AckProblem.INVALID_RECORD_STATE
    many = [AckBatch(first + number, first + number, b"\x01") for number in range(20_000)]
    assert await world.share.acknowledge("a", many, renewing=True) is AckProblem.INVALID_RECORD_STATE
    whole = [AckBatch(0, 2**62, b"\x01")]
    assert await world.share.acknowledge("a", whole, renewing=True) is AckProblem.INVALID_RECORD_STATE
    assert time.perf_counter() - began < 1, "milliseconds, on a free machine"
    world.add(1)
    assert await world.acquire("m" * 256) == []
    assert world.raw.xpending(KEY, GROUP)["pending"] == 1


async def test_a_list_is_applied_as_a_whole(world: World) -> None:
    for number in range(6):
        world.raw.xadd(KEY, {"value": "v"}, id=f"5-{number}")
    first = 5 << 10
    await world.acquire("a")
    assert await world.acknowledge("b", ACCEPT, first) is AckProblem.INVALID_RECORD_STATE
    assert await world.acknowledge("a", ACCEPT, first, first + 6) is AckProblem.INVALID_RECORD_STATE
    for wrong in (
        [AckBatch(first, first, b"\x05")],
        [AckBatch(first, first + 2, b"\x01\x01")],
        [AckBatch(first + 1, first, b"\x01")],
        [AckBatch(-1, first, b"\x01")],
        [AckBatch(first, first, b"")],
        [AckBatch(first + 1, first + 1, b"\x01"), AckBatch(first, first, b"\x01")],
        [AckBatch(first, first + 1, b"\x01"), AckBatch(first + 1, first + 1, b"\x01")],
    ):
        assert await world.share.acknowledge("a", wrong, renewing=True) is AckProblem.INVALID_REQUEST
    renewing = [AckBatch(first, first, b"\x04")]
    assert await world.share.acknowledge("a", renewing, renewing=False) is AckProblem.INVALID_REQUEST
    kinds = [AckBatch(first, first + 3, b"\x01\x02\x03\x03"), AckBatch(first + 4, 2**62, b"\x00")]
    assert await world.share.acknowledge("a", kinds, renewing=True) is None
    assert await world.acquire("b") == [first + 1]
    assert world.raw.xpending(KEY, GROUP)["pending"] == 1


async def test_no_member_can_be_the_consumer_of_released_entries(world: World) -> None:
    added = world.add(2)
    await world.acquire("a")
    await world.acknowledge("a", RELEASE, *added)
    assert await world.acquire(RELEASED) == []
    assert await world.acknowledge(RELEASED, ACCEPT, *added) is AckProblem.INVALID_RECORD_STATE
    await world.release(RELEASED)
    assert await world.acquire("a") == added


async def test_position_alter_and_drop(world: World) -> None:
    added = world.add(3)
    assert await world.shares.position(GROUP, world.partition) is None
    await world.acquire("a", 2)
    assert await world.shares.position(GROUP, world.partition) == SharePosition(added[0], 3, (("a", 2),))
    await world.shares.begin(GROUP, world.partition, world.config, added[2])
    assert await world.acquire("a") == added[2:]
    await world.release("a")
    await world.shares.drop(GROUP, world.partition)
    assert await world.shares.position(GROUP, world.partition) is None


async def test_a_disconnected_client_leaves_what_it_acquired_to_the_end_of_its_session(world: World) -> None:
    added = world.add(2)
    reading = asyncio.ensure_future(world.acquire("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    reading.cancel()
    await world.release("a")
    assert await world.acquire("b") == added


async def test_a_deleted_topic_is_refused(world: World) -> None:
    woken: list[int] = []
    world.partition.watch(woken.append)
    world.partition.close()
    assert woken == [0]
    with pytest.raises(UnknownTopic):
        await world.share.ready()
    with pytest.raises(UnknownTopic):
        await world.acquire(begin=False)
    with pytest.raises(UnknownTopic):
        await world.shares.begin(GROUP, world.partition, world.config, None)
    assert isinstance(await world.acknowledge("a", ACCEPT, 1), UnknownTopic)
    await world.release("a")


async def test_a_closed_share_partition_wakes_its_members_once_more(world: World) -> None:
    await world.acquire()
    before = world.woken
    world.share.close()
    assert world.woken == before + 1
    world.clock.advance(2 * LOCK_MS)
    assert world.woken == before + 1
