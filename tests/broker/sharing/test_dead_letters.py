"""Dead letters: in their topic before they are done, with their origin, again after a failure."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs
from tests.harness.logs import opened
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.sharing.dead_letters import DeadLetterCopies, DeadLetterTopics
from headrace.broker.topics.live import AppendBatch, LiveTopic
from headrace.groups.configs import GroupConfig
from headrace.groups.sharing.dead_letter import origin_of
from headrace.groups.sharing.partition import SharePartition, ShareSettings
from headrace.groups.sharing.state import ShareState
from headrace.records.build import build
from headrace.records.compression import CODECS
from headrace.records.walk import Record, records
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Append, Topic

DEFAULTS = TopicDefaults({})
GROUP = "g"


class World:
    """A log with a share group, and its dead letter topic."""

    def __init__(self, storage: MemoryStorage, log: LeaderPartition) -> None:
        self.storage = storage
        self.log = log
        self.clock = ManualClock()
        self.config = GroupConfig(dead_letter_topic="dlq")
        self.live: dict[str, LiveTopic] = {}
        self.refusal: Exception | None = None
        self.elsewhere: AppendBatch | None = self.append
        self.decompression = Decompression()
        self.topics = DeadLetterTopics(self.find, "c", lambda: self.elsewhere, self.decompression, self.clock)
        self.copied = asyncio.Event()
        self.copies = self.new_copies()

    def new_copies(self) -> DeadLetterCopies:
        return DeadLetterCopies(GROUP, self.log, self.topics, lambda: self.config, self.clock, self.copied.set)

    async def create(self, name: str, partitions: int = 2, *, allows: bool = True) -> None:
        config = {"errors.deadletterqueue.group.enable": "true" if allows else "false"}
        streams = tuple(f"{name}:{index}" for index in range(partitions))
        topic = Topic(name=name, id=UUID(int=7), streams=streams, config=config, created_ms=0)
        logs: list[Any] = []
        for index, stream in enumerate(streams):
            made = LeaderPartition(
                name, index, stream, self.storage.logs, CacheBudget(1 << 20), self.clock, SnapshotSchedule()
            )
            await made.open(create=True)
            logs.append(made)
        self.live[name] = LiveTopic(topic, resolve(config, DEFAULTS), logs)

    def find(self, name: str) -> LiveTopic:
        try:
            return self.live[name]
        except KeyError:
            raise UnknownTopic(f"no topic {name!r}") from None

    async def append(self, cluster: str, live: LiveTopic, index: int, batch: bytearray) -> None:
        assert cluster == "c"
        if self.refusal is not None:
            raise self.refusal
        live.append(index, batch, self.clock.now_ms(), lambda _: None)

    async def put(self, values: Iterable[bytes | None], codec: str = "none") -> None:
        given = [(b"key", value, 5, (("own", b"x"),)) for value in values]
        append = Append(build(given, codec=CODECS[codec]), len(given), 5)
        self.log.append(append, lambda _: None)
        await self.log.settle()

    def dead(self, text: str) -> SharePartition:
        return SharePartition(ShareState.decode(text), ShareSettings(dead_letters=True))

    async def found(self, index: int = 0) -> list[Record]:
        log = self.live["dlq"].partitions[index]
        await log.settle()
        batches = await self.storage.logs.read(log.stream, 0, 100)
        return [record for each in batches for record in records(each.batch, each.base_offset)]

    async def until_copied(self, core: SharePartition) -> None:
        while core.dead_letters():
            self.copied.clear()
            await asyncio.wait_for(self.copied.wait(), 5)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    storage = MemoryStorage()
    made = World(storage, await opened(storage, "headrace:t:0"))
    yield made
    made.copies.close()
    made.decompression.close()


def origins(found: list[Record]) -> list[tuple[int, int, str]]:
    read = [origin_of(record.headers) for record in found]
    return [(each.offset, each.delivery_count, each.message) for each in read if each is not None]


@pytest.mark.parametrize("codec", ["none", "gzip"])
async def test_records_are_in_the_topic_before_they_are_done(world: World, codec: str) -> None:
    await world.create("dlq")
    await world.put([b"a", b"b", None, b"d"], codec)
    await world.put([b"e"], codec)
    core = world.dead("0 0 1d,2x5,1d,1x1")
    world.copies.look(core)
    assert (world.copies.waiting, core.spso) == (3, 1)
    await world.until_copied(core)
    found = await world.found()
    assert [(each.key, each.value, each.headers[0]) for each in found] == [
        (b"key", b"b", ("own", b"x")),
        (b"key", None, ("own", b"x")),
        (b"key", b"e", ("own", b"x")),
    ]
    assert origins(found) == [
        (1, 5, "delivered 5 times without being accepted (limit 5)"),
        (2, 5, "delivered 5 times without being accepted (limit 5)"),
        (4, 1, "rejected by a member"),
    ]
    assert all(each.timestamp == world.clock.now_ms() for each in found)
    assert core.spso == 1
    assert core.prepare() == ShareState(0, 5)
    assert (world.topics.counters.copied, world.topics.counters.failures, world.copies.waiting) == (3, 0, 0)


async def test_without_copies_of_records_there_are_their_origins(world: World) -> None:
    await world.create("dlq")
    world.config = GroupConfig(dead_letter_topic="dlq", dead_letter_copy=False)
    core = world.dead("0 0 600x1")
    world.copies.look(core)
    await world.until_copied(core)
    found = await world.found()
    assert [each[0] for each in origins(found)] == list(range(600))
    assert {(each.key, each.value, len(each.headers)) for each in found} == {(None, None, 6)}


async def test_large_records_are_in_batches_of_their_own(world: World) -> None:
    await world.create("dlq")
    await world.put([b"x" * 700_000, b"y" * 700_000], "gzip")
    core = world.dead("0 0 2x1")
    world.copies.look(core)
    await world.until_copied(core)
    dlq = world.live["dlq"].partitions[0]
    await dlq.settle()
    assert [each.base_offset for each in await world.storage.logs.read(dlq.stream, 0, 9)] == [0, 1]


@pytest.mark.parametrize("what", ["missing", "not allowed", "unavailable", "its own", "unexpected"])
async def test_a_failed_copy_is_repeated_and_nothing_is_lost(world: World, what: str) -> None:
    await world.put([b"a"])
    if what != "missing":
        await world.create("dlq", allows=what != "not allowed")
    if what == "unavailable":
        world.refusal = StorageUnavailable("the connection was lost")
    if what == "unexpected":
        world.refusal = RuntimeError("a mistake")
    if what == "its own":
        world.live["t"] = world.live["dlq"]
        world.config = GroupConfig(dead_letter_topic="t")
    core = world.dead("0 0 1x5")
    world.copies.look(core)
    await asyncio.wait_for(world.copied.wait(), 30)
    assert (world.copies.failing, world.copies.waiting, core.prepare()) == (True, 1, None)
    assert world.topics.waiting == 1
    world.refusal = None
    world.config = GroupConfig(dead_letter_topic="dlq")
    await world.create("dlq")
    world.copied.clear()
    while core.dead_letters():
        world.clock.advance(60_000)
        await asyncio.sleep(0.001)
    assert core.prepare() == ShareState(0, 1)
    assert len(await world.found()) == 1
    assert not world.copies.failing
    assert world.topics.counters.failures >= 1


async def test_the_log_has_each_reason_once_and_the_end_of_the_failure(world: World) -> None:
    await world.put([b"a"])
    core = world.dead("0 0 1x5")

    async def until_failed(times: int) -> None:
        while world.topics.counters.failures < times:
            world.clock.advance(60_000)
            await asyncio.sleep(0.001)

    with capture_logs() as logs:
        world.copies.look(core)
        await until_failed(2)
        await world.create("dlq", allows=False)
        await until_failed(4)
        await world.create("dlq")
        while core.dead_letters():
            world.clock.advance(60_000)
            await asyncio.sleep(0.001)
    reasons = [each["reason"] for each in logs if each["log_level"] == "warning"]
    assert [each.split(":")[0] for each in reasons] == ["no topic 'dlq'", "topic 'dlq' allows no dead letters"]
    assert [each["event"] for each in logs if each["log_level"] == "info"] == ["dead letters are copied again"]


async def test_without_a_topic_by_now_they_are_only_archived(world: World) -> None:
    core = world.dead("0 0 3x5")
    world.config = GroupConfig()
    world.copies.look(core)
    await world.until_copied(core)
    assert core.prepare() == ShareState(0, 3)


async def test_what_was_deleted_meets_no_copy(world: World) -> None:
    await world.create("dlq")
    await world.put([b"a", b"b"])
    await world.log.delete_before(1)
    core = world.dead("0 0 2x5")
    world.copies.look(core)
    await world.until_copied(core)
    assert [each.value for each in await world.found()] == [b"b"]
    assert world.topics.counters.failures == 0


async def test_a_server_alone_appends_itself(world: World) -> None:
    await world.create("dlq", 1)
    world.elsewhere = None
    await world.put([b"a"])
    core = world.dead("0 0 1x5")
    world.copies.look(core)
    for _ in range(100):
        await world.live["dlq"].partitions[0].settle()
        await asyncio.sleep(0.001)
    assert core.dead_letters() == []
    assert len(await world.found()) == 1


async def test_the_next_leader_continues(world: World) -> None:
    await world.create("dlq")
    await world.put([b"a", b"b"])
    world.refusal = StorageUnavailable("the connection was lost")
    core = world.dead("0 0 2x5")
    world.copies.look(core)
    await asyncio.wait_for(world.copied.wait(), 30)
    world.copies.close()
    assert world.copies.waiting == 0
    world.refusal = None
    again = SharePartition(core.state, ShareSettings(dead_letters=True))
    world.copies = world.new_copies()
    world.copies.look(again)
    await world.until_copied(again)
    assert len(await world.found()) == 2


async def test_nothing_is_copied_while_the_server_stops(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Its threads end first: a copy would fail with an error in the log."""
    await world.create("dlq")
    await world.put([b"a", b"b"])
    core = world.dead("0 0 1x1")
    world.copies.look(core)
    world.topics.stop()
    world.decompression.close()
    core = world.dead("0 0 2x1")
    world.copies.look(core)
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(core.dead_letters()), world.topics.counters.failures) == (1, 0)
    assert "dead letters" not in capsys.readouterr().err
