"""Dead letters of a native topic: in their topic before they are done, and again after a failure or a restart."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from tests.conftest import OpenStorage
from tests.harness.logs import opened
from tests.harness.memory import MemoryStorage
from tests.harness.plain import KEY, STREAM
from tests.harness.waiting import until

from headrace.broker.native.partition import NativePartition
from headrace.broker.native.shares import NativeShare, StreamShares
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.topics.live import LiveTopic
from headrace.groups.configs import GroupConfig, OffsetReset
from headrace.groups.sharing.dead_letter import Origin, origin_of
from headrace.groups.sharing.partition import AckBatch, AcknowledgeType
from headrace.metrics.counters import ShareCounters
from headrace.records.walk import Record, records
from headrace.storage.layout.native import id_of, offset_at
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Topic
from headrace.topics.native import DEAD, RELEASED

GROUP = "group"
LIMIT = 2
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class World:
    """A native partition with a share group, and what was sent to its dead letter topic."""

    def __init__(self, partition: NativePartition, raw: Any, log: Any) -> None:
        self.partition, self.raw = partition, raw
        self.clock = ManualClock()
        self.config = self.with_topic("dlq")
        config = {"errors.deadletterqueue.group.enable": "true"}
        topic = Topic(name="dlq", id=UUID(int=7), streams=("dlq:0",), config=config, created_ms=0)
        self.live: dict[str, LiveTopic] = {"dlq": LiveTopic(topic, resolve(config, TopicDefaults({})), [log])}
        self.added = 1_000
        """Milliseconds of the last entry."""
        self.refusal: Exception | None = None
        self.pending: list[int] = []
        """Pending entries when each batch came."""
        self.batches: list[list[Record]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.decompression = Decompression()
        self.topics = DeadLetterTopics(self.find, "c", lambda: self.append, self.decompression, self.clock)
        self.large = ReadBudget(1 << 30)
        self.shares = StreamShares(self.clock, self.large, self.topics)
        self.share = self.open()

    def with_topic(self, name: str, *, window: int = 2_000, copy: bool = True) -> GroupConfig:
        return GroupConfig(
            share_auto_offset_reset=OffsetReset.parse("earliest"),
            share_delivery_count_limit=LIMIT,
            share_partition_max_record_locks=window,
            dead_letter_topic=name,
            dead_letter_copy=copy,
        )

    def open(self) -> NativeShare:
        return self.shares.open(GROUP, self.partition, lambda: self.config, ShareCounters())

    def restart(self) -> None:
        """Another server opens the partition: it knows only what Redis has."""
        self.share.close()
        self.share = self.open()

    def find(self, name: str) -> LiveTopic:
        try:
            return self.live[name]
        except KeyError:
            raise UnknownTopic(f"no topic {name!r}") from None

    async def append(self, cluster: str, live: LiveTopic, index: int, batch: bytearray) -> None:
        assert (cluster, live.topic.name, index) == ("c", "dlq", 0)
        self.pending.append(self.raw.xpending(KEY, GROUP)["pending"])
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.batches.append(records(bytes(batch), 0))

    @property
    def found(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]

    @property
    def origins(self) -> list[Origin]:
        return [origin for each in self.found if (origin := origin_of(each.headers)) is not None]

    def add(self, *values: bytes) -> list[int]:
        """Add entries that have no neighbors; their offsets."""
        added: list[int] = []
        for value in values:
            self.added += 10
            entry = {"value": value, "headers": '[["own", "x"]]'}
            added.append(offset_at(self.raw.xadd(KEY, entry, id=f"{self.added}-0").encode()))
        return added

    async def acquire(self, member: str = "a", count: int = 500) -> list[int]:
        await self.shares.begin(GROUP, self.partition, self.config, None)
        found = await self.share.fetch(member, count, 10_000_000, exact=False)
        return [offset for each in found.acquired for offset in range(each.first, each.last + 1)]

    async def acknowledge(self, kind: AcknowledgeType, *offsets: int, member: str = "a") -> None:
        batches = [AckBatch(offset, offset, bytes((kind.value,))) for offset in offsets]
        assert await self.share.acknowledge(member, batches, renewing=True) is None

    def owners(self) -> dict[int, str]:
        return {
            offset_at(each["message_id"].encode()): each["consumer"]
            for each in self.raw.xpending_range(KEY, GROUP, "-", "+", 10_000)
        }

    async def until_done(self, left: int = 0) -> None:
        await until(lambda: len(self.owners()) == left)


@pytest.fixture
async def world(open_storage: OpenStorage, raw: Any) -> AsyncIterator[World]:
    storage = await open_storage()
    extent = await storage.native.open(STREAM)
    made = World(NativePartition("t", 0, STREAM, extent, storage.native), raw, await opened(MemoryStorage(), "dlq:0"))
    yield made
    made.share.close()
    made.decompression.close()


async def test_rejected_and_spent_records_are_copied_before_they_are_done(world: World) -> None:
    added = world.add(b"good", b"bad", b"unlucky")
    assert await world.acquire() == added
    await world.acknowledge(ACCEPT, added[0])
    await world.acknowledge(REJECT, added[1])
    await world.acknowledge(RELEASE, added[2])
    await world.until_done(1)
    assert await world.acquire() == added[2:]
    await world.acknowledge(RELEASE, added[2])
    await world.until_done()
    assert [(each.value, each.headers[0], each.timestamp) for each in world.found] == [
        (b"bad", ("own", b"x"), world.clock.now_ms()),
        (b"unlucky", ("own", b"x"), world.clock.now_ms()),
    ]
    assert world.origins == [
        Origin("t", 0, added[1], GROUP, 1, "rejected by a member"),
        Origin("t", 0, added[2], GROUP, 2, "delivered 2 times without being accepted (limit 2)"),
    ]
    assert world.pending == [2, 1], "they were pending at the time of the copy"
    await until(lambda: world.topics.waiting == 0)
    assert (world.topics.counters.copied, world.topics.counters.failures) == (2, 0)
    assert world.raw.xlen(KEY) == 3


@pytest.mark.parametrize("ending", ["member", "lock"])
async def test_the_last_delivery_may_end_without_an_acknowledgement(world: World, ending: str) -> None:
    added = world.add(b"a", b"b")
    for _ in range(LIMIT):
        assert await world.acquire() == added
        if ending == "member":
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            world.share.release("a")
            world.share.retire(lambda over=over: over.set_result(None))  # type: ignore[misc]
            await over
        else:
            for each in world.raw.xpending_range(KEY, GROUP, "-", "+", 10):
                world.raw.xclaim(KEY, GROUP, "a", 0, [each["message_id"]], idle=60_000, justid=True)
            world.clock.advance(60_000)
    if ending == "lock":
        assert await world.acquire("b") == []
        await world.until_done()
    assert world.owners() == {}, "it does not retire before"
    assert [each.offset for each in world.origins] == added


async def test_many_records_are_copied_in_few_batches(world: World) -> None:
    with world.raw.pipeline(transaction=False) as many:
        for number in range(1_200):
            many.xadd(KEY, {"value": b"v"}, id=f"{1 + number // 3 * 5}-{number % 3}")
        added = [offset_at(entry_id.encode()) for entry_id in many.execute()]
    world.gate.clear()
    got: list[int] = []
    while found := await world.acquire():
        got += found
    assert got == added
    await world.acknowledge(REJECT, *added)
    await until(lambda: world.topics.waiting == 1_200)
    world.gate.set()
    await world.until_done()
    assert [len(each) for each in world.batches] == [500, 500, 200]
    assert [each.offset for each in world.origins] == added


async def test_large_records_are_alone_and_wait_for_memory(world: World) -> None:
    sizes = (1, 3_000_000, 700_000, 700_000, 2)
    added = world.add(*map(bytes, sizes))
    got: list[int] = []
    while found := await world.acquire():
        got += found
    assert got == added
    async with world.large.held(world.large.limit):
        await world.acknowledge(REJECT, *added)
        await until(lambda: len(world.batches) == 1)
        await asyncio.sleep(0.02)
        assert len(world.batches) == 1
    await world.until_done()
    assert [[len(each.value or b"") for each in batch] for batch in world.batches] == [
        [1],
        [3_000_000],
        [700_000],
        [700_000, 2],
    ]
    assert world.large.used == 0


async def test_without_copies_of_records_there_are_their_origins(world: World) -> None:
    world.config = world.with_topic("dlq", copy=False)
    ids = [world.raw.xadd(KEY, {"value": b"v"}, id=f"5-{number}") for number in range(600)]
    added = await world.acquire() + await world.acquire()
    await world.acknowledge(REJECT, *added)
    await world.until_done()
    assert [id_of(each.offset) for each in world.origins] == ids
    assert {(each.key, each.value, len(each.headers)) for each in world.found} == {(None, None, 6)}


@pytest.mark.parametrize("what", ["missing", "not allowed", "unavailable", "its own", "unexpected"])
async def test_a_failed_copy_is_repeated_and_nothing_is_lost(world: World, what: str) -> None:
    live = world.live["dlq"]
    match what:
        case "missing":
            world.live.clear()
        case "not allowed":
            world.live["dlq"] = LiveTopic(live.topic, resolve({}, TopicDefaults({})), live.partitions)
        case "unavailable":
            world.refusal = StorageUnavailable("the connection was lost")
        case "unexpected":
            world.refusal = RuntimeError("a mistake")
        case _:
            world.live["t"] = live
            world.config = world.with_topic("t")
    [offset] = world.add(b"a")
    await world.acquire()
    await world.acknowledge(REJECT, offset)
    await until(lambda: world.topics.counters.failures == 1)
    assert (world.owners(), world.topics.waiting, world.batches) == ({offset: DEAD}, 1, [])
    retired: list[bool] = []
    world.share.retire(lambda: retired.append(True))
    assert retired == [True], "it does not wait for an administrator"
    world.live["dlq"], world.refusal, world.config = live, None, world.with_topic("dlq")
    for _ in range(1_000):
        world.clock.advance(60_000)
        await asyncio.sleep(0.001)
        if not world.owners():
            break
    assert [each.offset for each in world.origins] == [offset]


@pytest.mark.parametrize("copied", [False, True])
async def test_the_next_server_continues(world: World, monkeypatch: pytest.MonkeyPatch, *, copied: bool) -> None:
    """The first server ends before the copy, or between the copy and the acknowledgement: then there are two."""
    added = world.add(b"a", b"b", b"c")
    await world.acquire()
    if copied:
        monkeypatch.setattr(world.partition.storage.shares, "bury", lambda *_: asyncio.Event().wait())
    else:
        world.gate.clear()
    await world.acknowledge(REJECT, *added[:2])
    await until(lambda: bool(world.batches if copied else world.pending))
    world.share.close()
    assert world.topics.waiting == 0
    monkeypatch.undo()
    world.gate.set()
    await asyncio.sleep(0.02)
    assert len(world.batches) == copied
    assert world.owners() == {added[0]: DEAD, added[1]: DEAD, added[2]: "a"}
    world.restart()
    assert await world.acquire("b") == []
    await world.until_done(1)
    assert [each.offset for each in world.origins] == added[:2] * (2 if copied else 1)


async def test_a_lost_response_hides_no_dead_letters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    added = world.add(b"a")
    await world.acquire()
    shares = world.partition.storage.shares
    acknowledge = shares.acknowledge

    async def lost(*arguments: Any) -> Any:
        await acknowledge(*arguments)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(shares, "acknowledge", lost)
    answer = await world.share.acknowledge("a", [AckBatch(added[0], added[0], b"\x03")], renewing=False)
    assert isinstance(answer, StorageUnavailable)
    assert world.owners() == {added[0]: DEAD}
    assert await world.acquire() == []
    await world.until_done()
    assert [each.offset for each in world.origins] == added


async def test_without_a_topic_by_now_they_are_only_done(world: World) -> None:
    world.live.clear()
    added = world.add(b"a", b"b")
    await world.acquire()
    await world.acknowledge(REJECT, *added)
    await until(lambda: world.topics.counters.failures == 1)
    world.config = world.with_topic("")
    world.restart()
    await world.acquire()
    await world.until_done()
    assert world.batches == []


async def test_without_a_topic_nothing_waits(world: World) -> None:
    world.config = world.with_topic("")
    added = world.add(b"a", b"b")
    await world.acquire()
    await world.acknowledge(REJECT, added[0])
    await world.acknowledge(RELEASE, added[1])
    assert world.owners() == {added[1]: RELEASED}


async def test_removed_records_meet_no_copy(world: World) -> None:
    added = world.add(b"a", b"b", b"c")
    await world.acquire()
    world.gate.clear()
    await world.acknowledge(REJECT, added[0])
    await until(lambda: bool(world.pending))
    await world.acknowledge(REJECT, *added[1:])
    world.raw.xdel(KEY, id_of(added[1]))
    world.gate.set()
    await world.until_done()
    assert [each.value for each in world.found] == [b"a", b"c"]
    assert world.topics.counters.failures == 0


async def test_a_window_full_of_dead_letters_opens_after_their_copies(world: World) -> None:
    world.config = world.with_topic("dlq", window=100)
    added = world.add(*[b"v"] * 101)
    assert await world.acquire() == added[:100]
    world.gate.clear()
    await world.acknowledge(REJECT, *added[:100])
    woken: list[int] = []
    assert await world.acquire() == [], "no room in the window"
    world.share.watchers.watch(woken.append)
    assert woken == []
    world.gate.set()
    await until(lambda: bool(woken))
    await world.until_done()
    assert await world.acquire() == added[100:]


async def test_no_member_can_be_the_consumer_of_dead_letters(world: World) -> None:
    world.live.clear()
    added = world.add(b"a", b"b")
    await world.acquire(count=1)
    await world.acknowledge(REJECT, added[0])
    assert await world.acquire(DEAD) == []
    batches = [AckBatch(added[0], added[0], b"\x01")]
    assert await world.share.acknowledge(DEAD, batches, renewing=True) is not None
    world.share.release(DEAD)
    assert world.owners() == {added[0]: DEAD}


async def test_a_deleted_topic_has_no_more_copies(world: World) -> None:
    world.live.clear()
    added = world.add(b"a")
    await world.acquire()
    await world.acknowledge(REJECT, *added)
    await until(lambda: world.topics.counters.failures == 1)
    world.partition.close()
    for _ in range(20):
        world.clock.advance(60_000)
        await asyncio.sleep(0.001)
    assert world.topics.counters.failures <= 2
