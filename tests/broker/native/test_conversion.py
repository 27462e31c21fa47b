"""A topic that changes its storage while producers are at full speed, on a real Redis."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest
import redis
from tests.broker.native.brokers import over
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.brokers.leadership import LeaderRegistry
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.native.conversion import NativeGroupOffsets, convert
from headrace.broker.native.partition import NativePartition
from headrace.broker.services import Services
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.membership.view import Leader, Member, View
from headrace.records.accelerator import crc32c
from headrace.records.build import build
from headrace.records.compression import ZSTD
from headrace.records.walk import records
from headrace.testing.clock import ManualClock
from headrace.topics.errors import CorruptBatch, Fenced, InvalidConfig, StorageUnavailable
from headrace.topics.model import Append, Appended, StoredBatch
from headrace.topics.native import NativeRead

BATCHES, SIZE = 48, 1_000_000
VIEW = 7


class NoPositions:
    """No group has an offset in the topic."""

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        return {}

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        pass


def alone_in_view() -> Ownership:
    ownership = Ownership(1)
    ownership.adopt(View(VIEW, (me(),)), inside=True)
    return ownership


def me() -> Member:
    return Member(node_id=1, incarnation="a", process="", host="here", port=1)


def put(broker: Broker, answers: list[Appended | Exception]) -> None:
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answers.append)


@pytest.mark.parametrize("alone", [True, False])
async def test_an_append_that_waits_behind_other_topics_comes_along(
    open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    storage = await open_storage(alone=alone)
    broker = over(storage)
    await broker.topics.create("busy", 1, {})
    live = await broker.topics.create("t", 1, {})
    answers: list[Appended | Exception] = []
    read = storage.logs.read

    async def read_while_producers_are_busy(*args: Any) -> list[StoredBatch]:
        found = await read(*args)
        # More than a few calls hold: the last one goes to Redis only when what went before is there.
        if not answers:
            for topic, size in [("busy", SIZE)] * BATCHES + [("t", 1)]:
                broker.append(topic, 0, bytearray(build([(None, b"x" * size, 5, ())])), answers.append)
        return found

    monkeypatch.setattr(storage.logs, "read", read_while_producers_are_busy)
    await convert(broker.topics, "t", "native", NoPositions())
    async with asyncio.timeout(60):
        while len(answers) <= BATCHES:
            await asyncio.sleep(0.01)
    assert isinstance(answers[-1], Appended)
    (stream,) = live.topic.streams
    assert await storage.scripts.shards.at(stream).call("XLEN", stream) == 1


async def test_a_joining_broker_stops_the_conversion(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that the joining broker would append to the old topic would be missing in the copy."""
    storage = await open_storage(VIEW, alone=False)
    broker = over(storage, alone_in_view())
    live = await broker.topics.create("t", 1, {})
    before = live.topic
    read = storage.logs.read

    async def read_while_another_one_joins(*args: Any) -> list[StoredBatch]:
        with redis.Redis.from_url(any_redis.url) as raw:
            raw.set("headrace:{meta}:epoch", VIEW + 1)
        storage.fence.number = VIEW + 1
        return await read(*args)

    monkeypatch.setattr(storage.logs, "read", read_while_another_one_joins)
    with pytest.raises(
        InvalidConfig, match="topic 't' stays as it is: another broker has joined or left in the meantime"
    ):
        await convert(broker.topics, "t", "native", NoPositions())
    assert live.topic == before == await storage.topics.find("t")
    assert not live.partitions[0].paused


@pytest.mark.parametrize("records", [0, 1])
async def test_a_broker_that_is_alone_in_its_view_makes_a_log_of_a_native_topic(
    open_storage: OpenStorage, records: int
) -> None:
    """The registry has the new log last of all: one that it lacks is not always one of a topic that was deleted."""
    broker = over(await open_storage(VIEW, alone=False), alone_in_view())
    live = await broker.topics.create("t", 1, {"headrace.storage": "native"})
    answers: asyncio.Queue[Appended | Exception] = asyncio.Queue()
    for _ in range(records):
        broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answers.put_nowait)
        assert isinstance(await answers.get(), Appended)
    assert await convert(broker.topics, "t", "log", NoPositions()) == records
    assert not live.config.native
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answers.put_nowait)
    assert await answers.get() == Appended(records)


async def test_the_log_that_it_became_is_named_under_its_leader_epoch(open_storage: OpenStorage) -> None:
    """It is announced before the topic has it, for example while the last records are copied."""

    async def tell(told: Mapping[str, Leader]) -> None:
        clusters.learn_leaders(told)

    storage = await open_storage(VIEW, alone=False)
    settings, clock = BrokerSettings.of({}), ManualClock()
    clusters = VirtualClusters(
        storage,
        settings,
        clock,
        cluster_id="c",
        stream_of=lambda _, name, index, __: f"{name}:{index}",
        parts=Services(storage.documents, settings, clock, ownership=alone_in_view(), leaders=LeaderRegistry(1, tell)),
    )
    live = await clusters.default.topics.create("t", 1, {"headrace.storage": "native"})
    await convert(clusters.default.topics, "t", "log", NoPositions())
    (log,) = live.partitions
    await until(lambda: log.named.epoch >= 0)
    assert log.named == (log.leader_epoch, 1)
    await clusters.stop()


class Recording:
    """A group has committed the only record. Records where groups are carried, and can run a callback in between."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        self._at, self._meanwhile = at, meanwhile
        self.carried: list[Mapping[tuple[int, int], int]] = []

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        return {0: {self._at}}

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        self.carried.append(dict(moved))
        self._meanwhile()


@pytest.mark.parametrize("when", ["copying", "carrying"])
async def test_groups_of_a_topic_that_stays_native_keep_their_offsets(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """At the numbers of the log that it did not become they would read it from its beginning."""
    storage = await open_storage(VIEW, alone=False)
    broker = over(storage, alone_in_view())
    live = await broker.topics.create("t", 1, {"headrace.storage": "native"})
    answers: asyncio.Queue[Appended | Exception] = asyncio.Queue()
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answers.put_nowait)
    appended = await answers.get()
    assert isinstance(appended, Appended)
    before, read = live.topic, storage.native.read

    def join() -> None:
        with redis.Redis.from_url(any_redis.url) as raw:
            raw.set("headrace:{meta}:epoch", VIEW + 1)

    async def read_while_another_one_joins(*args: Any, **options: Any) -> NativeRead:
        join()
        return await read(*args, **options)

    if when == "copying":
        monkeypatch.setattr(storage.native, "read", read_while_another_one_joins)
    at = appended.base_offset
    positions = Recording(at, join)
    with pytest.raises(
        InvalidConfig, match="topic 't' stays as it is: another broker has joined or left in the meantime"
    ):
        await convert(broker.topics, "t", "log", positions)
    assert positions.carried == ([] if when == "copying" else [{(0, at): 0}, {(0, at): at}])
    assert live.topic == before == await storage.topics.find("t")
    assert not live.partitions[0].paused


async def test_appends_by_an_earlier_membership_are_refused_after_the_copy(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, and wakes: acknowledged, its records would go with the old stream."""
    ownership = alone_in_view()
    storage, stopped = await open_storage(VIEW, alone=False), await open_storage(VIEW, alone=False)
    broker = over(storage, ownership)
    live = await broker.topics.create("t", 1, {"headrace.storage": "native"})
    (partition,) = live.partitions
    assert isinstance(partition, NativePartition)
    with redis.Redis.from_url(any_redis.url) as raw:
        raw.set("headrace:{meta}:epoch", VIEW + 1)
    ownership.adopt(View(VIEW + 1, (me(),)), inside=True)
    storage.fence.number = VIEW + 1
    answers: list[Appended | Exception] = []
    replace = storage.topics.replace

    async def replace_when_it_has_woken(*args: Any) -> None:
        stopped.native.append(partition.place, Append(build([(None, b"late", 5, ())]), 1, 5), answers.append)
        await stopped.ping()
        await replace(*args)

    monkeypatch.setattr(storage.topics, "replace", replace_when_it_has_woken)
    await convert(broker.topics, "t", "log", NoPositions())
    assert {type(answer) for answer in answers} == {Fenced}


class Reading(NoPositions):
    """A group has come between the first look at the groups and the last."""

    def __init__(self) -> None:
        self._looks = iter(({}, {0: {0}}))

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        return next(self._looks)


async def test_groups_that_continue_reading_stop_the_conversion(open_storage: OpenStorage) -> None:
    """Where they stand by now is in no list: they would stand at numbers that the other storage does not have."""
    broker = over(await open_storage())
    live = await broker.topics.create("t", 1, {})
    answers: list[Appended | Exception] = []
    put(broker, answers)
    with pytest.raises(InvalidConfig, match="groups have continued to read topic 't'"):
        await convert(broker.topics, "t", "native", Reading())
    assert not live.config.native
    assert not live.partitions[0].paused


async def test_groups_whose_broker_has_just_gone_come_along(open_storage: OpenStorage) -> None:
    """They are loaded one after the other, in the background."""
    topic, first = TopicPartition("t", 0), over(await open_storage(VIEW, alone=False), alone_in_view())
    await first.topics.create("t", 1, {})
    commit = Commit(
        token=object(), generation=-1, member_id="", instance_id=None, positions={topic: OffsetAndMetadata(offset=0)}
    )
    await first.groups.request("g", commit)
    second = over(await open_storage(VIEW, alone=False), alone_in_view())
    await second.topics.load()
    live = second.topics.get("t")
    assert await NativeGroupOffsets(second.groups, second.instances, second.positions).wanted(live) == {0: {0}}


async def test_a_batch_that_cannot_be_read_has_it_stay_as_it_is(open_storage: OpenStorage) -> None:
    """Logs take what producers say is compressed as it is. The topic takes more afterwards."""
    broker = over(await open_storage())
    live = await broker.topics.create("t", 1, {})
    answers: asyncio.Queue[Appended | Exception] = asyncio.Queue()
    broken = bytearray(build([(None, b"x" * 100, 5, ())], codec=1))
    broken[70:80] = bytes(10)
    broken[17:21] = crc32c(broken[21:]).to_bytes(4, "big")
    broker.append("t", 0, broken, answers.put_nowait)
    assert await answers.get() == Appended(0)
    with pytest.raises(CorruptBatch, match="records from offset 0 on cannot be read"):
        await convert(broker.topics, "t", "native", NoPositions())
    broker.append("t", 0, bytearray(build([(None, b"x", 5, ())])), answers.put_nowait)
    assert await answers.get() == Appended(1)
    assert not live.config.native


async def test_an_answer_that_is_lost_does_not_leave_the_old_one_in_use(
    open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has taken the step that counts: what went on into the old streams would be dropped with them."""
    storage = await open_storage()
    broker = over(storage)
    live = await broker.topics.create("t", 1, {})
    answers: list[Appended | Exception] = []
    put(broker, answers)
    replace = storage.topics.replace

    async def lose_the_answer(*args: Any) -> None:
        await replace(*args)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(storage.topics, "replace", lose_the_answer)
    assert await convert(broker.topics, "t", "native", NoPositions()) == 1
    assert live.config.native
    assert await storage.topics.find("t") == live.topic


@pytest.mark.parametrize("storage", ["native", "log"])
async def test_producers_that_are_faster_than_one_write_for_each_batch_do_not_hold_it_up(
    open_storage: OpenStorage, storage: str
) -> None:
    """It would follow them forever, and no topic could be created or deleted for as long."""
    broker = over(await open_storage())
    live = await broker.topics.create("t", 1, {} if storage == "native" else {"headrace.storage": "native"})
    count, ended = 0, asyncio.Event()

    async def produce() -> None:
        nonlocal count
        while not ended.is_set():
            with contextlib.suppress(StorageUnavailable):
                await stored(broker, build([(None, b"x", 1000, ())]))
                count += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for _ in range(64):
            tasks.create_task(produce())
        await asyncio.sleep(0.1)
        await convert(broker.topics, "t", storage, NoPositions())
        ended.set()
    assert len(await all_of(live)) == count


async def stored(broker: Broker, batch: bytearray, partition: int = 0) -> None:
    answers: asyncio.Queue[Appended | Exception] = asyncio.Queue()
    broker.append("t", partition, batch, answers.put_nowait)
    assert isinstance(await answers.get(), Appended)


async def all_of(live: LiveTopic) -> list[tuple[Any, ...]]:
    """Everything of the records but their offsets."""
    found: list[tuple[Any, ...]] = []
    at = 0
    while batches := await live.partitions[0].read_range(max(at, live.partitions[0].log_start), 8 << 20):
        found += [each[1:] for stored in batches for each in records(stored.batch, stored.base_offset)]
        at = batches[-1].next_offset
    return found


LARGE: dict[str, list[Any]] = {
    "records": [(None if n % 3 else b"k", b"%d" % n if n % 2 else None, 1000 + n % 7, ()) for n in range(60_000)],
    "bytes": [(None, bytes(1 << 20), 1000, (("h", None), ("i", b"x")))] * 30,
    "headers": [(None, b"x", 1000, (("h", None),) * 60_000)] * 3,
}


@pytest.mark.parametrize("kind", LARGE)
async def test_a_batch_that_a_native_topic_would_not_take_is_moved_in_pieces(
    open_storage: OpenStorage, kind: str
) -> None:
    broker = over(await open_storage())
    live = await broker.topics.create("t", 1, {})
    await stored(broker, build(LARGE[kind], codec=ZSTD))
    before = await all_of(live)
    assert await convert(broker.topics, "t", "native", NoPositions()) == len(before) == len(LARGE[kind])
    assert live.config.native
    # Not compared by pytest, which would print how megabytes differ.
    assert (await all_of(live) == before) is True


async def test_a_record_that_a_native_topic_does_not_take_is_named(open_storage: OpenStorage) -> None:
    broker = over(await open_storage())
    live = await broker.topics.create("t", 1, {})
    large = (None, b"x", 1000, (("h", None),) * 200_000)
    await stored(broker, build([(None, b"x", 1000, ())] * 5 + [large], codec=ZSTD))
    with pytest.raises(CorruptBatch, match=r"t-0: records from offset 5 on are not taken: .* more than 100000 headers"):
        await convert(broker.topics, "t", "native", NoPositions())
    assert not live.config.native


def away_twice(call: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    left = 2

    async def called(*args: Any) -> None:
        nonlocal left
        if left:
            left -= 1
            raise StorageUnavailable("the connection was lost")
        await call(*args)

    return called


async def test_positions_and_old_streams_follow_where_redis_is_away_for_a_moment(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is converted by then: without a retry, a copy of all records would stay in Redis."""
    storage = await open_storage()
    broker = over(storage)
    live = await broker.topics.create("t", 1, {})
    for _ in range(2):
        await stored(broker, bytearray(build([(None, b"x", 5, ())])))
    place = TopicPartition("t", 0)
    commit = Commit(
        token=1, generation=-1, member_id="", instance_id=None, positions={place: OffsetAndMetadata(offset=1)}
    )
    await broker.groups.request("g", commit)
    replace = storage.topics.replace

    async def replace_and_go_away(*args: Any) -> None:
        await replace(*args)
        monkeypatch.setattr(storage.groups, "save", away_twice(storage.groups.save))
        monkeypatch.setattr(storage.topics, "finish_deletions", away_twice(storage.topics.finish_deletions))

    monkeypatch.setattr(storage.topics, "replace", replace_and_go_away)
    assert await broker.convert("t", "native") == 2
    batches = await live.partitions[0].read_range(0, 1 << 20)
    offsets = [record.offset for each in batches for record in records(each.batch, each.base_offset)]
    assert (await broker.positions("g", [place]))[place].offset == offsets[1]
    with redis.Redis.from_url(any_redis.url) as raw:
        assert not raw.exists("t:0")


@pytest.mark.parametrize("storage_", ["log", "native"])
async def test_the_old_streams_of_a_server_that_died_behind_the_step_that_counts_go_with_the_next(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, storage_: str
) -> None:
    """No topic has them any more: they would stay for ever. Nothing else goes, nor what is adopted."""
    storage = await open_storage()
    broker = over(storage)
    await broker.topics.create("other", 1, {"headrace.storage": "native"})
    before = (await broker.topics.create("t", 2, {"headrace.storage": storage_})).topic
    for partition in range(2):
        await stored(broker, bytearray(build([(None, b"x", 5, ())])), partition)

    class Died(BaseException):
        pass

    replace = storage.topics.replace

    async def replace_and_die(*args: Any) -> None:
        await replace(*args)
        raise Died

    monkeypatch.setattr(storage.topics, "replace", replace_and_die)
    other = "native" if storage_ == "log" else "log"
    with pytest.raises(Died):
        await convert(broker.topics, "t", other, NoPositions())
    with redis.Redis.from_url(any_redis.url, decode_responses=True) as raw:
        assert raw.exists(*before.streams) == 2
        later = over(await open_storage(2))
        await later.topics.load()
        left: Any = raw.keys("*")
        of_old = [key for key in left if any(key == stream or f"{{{stream}}}" in key for stream in before.streams)]
        assert of_old == []
        assert not raw.exists("headrace:{meta}:deleted")
    converted = later.topics.get("t")
    assert [len(await each.read_range(each.log_start, 1 << 20)) for each in converted.partitions] == [1, 1]
    assert later.topics.has("other")


class Crash(BaseException):
    """The process ends: no cleanup after an Exception runs."""


@pytest.mark.parametrize("to", ["native", "log"])
async def test_a_crash_at_any_step_and_a_deletion_leave_no_key(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    with redis.Redis.from_url(any_redis.url) as raw:
        step, crashed = 0, True
        while crashed:
            step += 1
            storage = await open_storage()
            broker = over(storage)
            await broker.topics.create("t", 2, {} if to == "native" else {"headrace.storage": "native"})
            answers: list[Appended | Exception] = []
            put(broker, answers)
            await until(partial(bool, answers))
            calls, call = 0, storage.scripts.call

            async def crashing(*args: Any, call: Any = call, step: int = step) -> Any:
                nonlocal calls
                calls += 1
                if calls == step:
                    raise Crash
                return await call(*args)

            monkeypatch.setattr(storage.scripts, "call", crashing)
            try:
                await convert(broker.topics, "t", to, NoPositions())
                crashed = False
            except Crash:
                crashed = True
            await storage.close()
            following = over(await open_storage())
            await following.topics.load()
            await following.topics.delete("t")
            left = [key for key in raw.scan_iter() if b"t:" in key or b"@" in key]
            assert left == [], f"crash at step {step}: {left}"
            assert raw.hgetall("headrace:{meta}:deleted") == {}
    assert step > 5
