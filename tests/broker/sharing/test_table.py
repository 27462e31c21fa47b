"""The table of share partitions: what clients name does not stay in memory."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from tests.broker.world import World as RunningBroker
from tests.harness.logs import appended, opened
from tests.harness.memory import MemoryStorage
from tests.harness.redis import RedisServer

from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.sharing import table as sharing
from headrace.broker.sharing.fetch import ShareFetch, ShareFetchLimits
from headrace.broker.sharing.session import Place, ShareSession
from headrace.broker.sharing.share import Share
from headrace.broker.sharing.table import ShareTable
from headrace.groups.configs import Configs
from headrace.groups.model import GroupSettings
from headrace.groups.sharing.events import PartitionState
from headrace.records.build import build
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Append

TOPIC = UUID(int=1)
PLACE = (TOPIC, 0)


class World:
    """A table with one topic of one partition."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.clock = ManualClock()
        self.lane = CooperativeScheduler()
        self.table: ShareTable

    async def open(self) -> None:
        self.log = await opened(self.storage, "t:0")
        partition: Any = SimpleNamespace(log=self.log, stream="t:0", check_led=lambda: None)
        live: Any = SimpleNamespace(partition=lambda _: partition, partitions=[partition])
        topics: Any = SimpleNamespace(with_id=lambda topic_id: live if topic_id == TOPIC.bytes else None)
        unused: Any = SimpleNamespace(add=lambda _: None)
        self.table = ShareTable(
            topics, self.storage.shares, Configs(), GroupSettings(), self.clock, self.lane, unused, unused, unused
        )

    async def fetch(self, group: str) -> ShareFetch:
        """A fetch of a session that is new, and stays."""
        session = self.table.sessions.open(group, "m")
        self.table.sessions.add(session, [PLACE])
        fetch = ShareFetch(
            session,
            ShareFetchLimits(0, 1 << 20, 10, exact=False),
            self.table.find,
            self.table.forget,
            lambda _: 3,
            clock=self.clock,
            budget=ReadBudget(1 << 30),
            lane=self.lane,
        )
        await fetch.run()
        return fetch


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.open()
    yield made
    made.log.close()


async def test_a_partition_that_the_group_does_not_have_is_forgotten(world: World) -> None:
    for number in range(3):
        fetch = await world.fetch(f"g{number}")
        assert isinstance(fetch.errors[PLACE], UnknownTopic)
    assert list(world.table) == []
    await world.table.begin("g1", [PartitionState("t", TOPIC, 0, 1, begin=0)])
    assert not (await world.fetch("g1")).errors
    assert [share.group for share in world.table] == ["g1"]


async def test_so_many_are_open_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MOST_OPEN", 1)
    await world.table.begin("a", [PartitionState("t", TOPIC, 0, 1, begin=0)])
    await world.fetch("a")
    assert isinstance((await world.fetch("b")).errors[PLACE], StorageUnavailable)
    session = world.table.sessions.find("a", "m", 1)
    world.table.end(session)
    assert list(world.table) == [], "it closes with the last session of its group"
    assert isinstance((await world.fetch("b")).errors[PLACE], UnknownTopic)


async def test_a_session_that_ends_during_its_fetch_holds_nothing(world: World) -> None:
    made = build([(None, b"x", 1, ())])
    await appended(world.log, Append(made, 1, 1, -1, -1, -1))
    await world.table.begin("g", [PartitionState("t", TOPIC, 0, 1, begin=0)])
    sessions, budget = world.table.sessions, ReadBudget(1)
    ending, staying = sessions.open("g", "ending"), sessions.open("g", "staying")
    for each in (ending, staying):
        sessions.add(each, [PLACE])

    def fetch(session: ShareSession) -> ShareFetch:
        def find(group: str, place: Place) -> Share:
            if session not in sessions:
                raise UnknownTopic("the share session has ended")
            return world.table.find(group, place)

        limits = ShareFetchLimits(0, 1 << 20, 10, exact=False)
        return ShareFetch(
            session, limits, find, world.table.forget, lambda _: 3, clock=world.clock, budget=budget, lane=world.lane
        )

    budget.take(1)
    late, next_one = fetch(ending), fetch(staying)
    running = asyncio.ensure_future(late.run())
    while not budget.short:
        await asyncio.sleep(0)
    world.table.end(ending)
    budget.release(1)
    await running
    assert (late.found, list(late.errors)) == ({}, [PLACE])
    await next_one.run()
    assert [(each.first, each.delivery_count) for each in next_one.found[PLACE].acquired] == [(0, 1)]


async def test_it_stays_open_for_a_session_that_begins_during_its_last_write(world: World) -> None:
    made = build([(None, b"x", 1, ())])
    await appended(world.log, Append(made, 1, 1, -1, -1, -1))
    await world.table.begin("g", [PartitionState("t", TOPIC, 0, 1, begin=0)])
    assert (await world.fetch("g")).found
    world.storage.shares.answers = asyncio.Event()
    world.table.end(world.table.sessions.find("g", "m", 1))
    (share,) = world.table
    again = asyncio.ensure_future(world.fetch("g"))
    for _ in range(5):
        await asyncio.sleep(0)
    world.storage.shares.answers.set()
    assert not (await again).errors
    for _ in range(5):
        await asyncio.sleep(0)
    assert list(world.table) == [share]
    assert [each.delivery_count for each in (await world.fetch("g")).found[PLACE].acquired] == [2]


async def test_a_deleted_topic_leaves_nothing_behind(world: World) -> None:
    """Members' sessions may last for months, and see many topics come and go."""
    state = PartitionState("t", TOPIC, 0, 1, begin=0)
    await world.table.begin("g", [state])
    await world.fetch("g")
    (share,) = world.table
    closed: list[int] = []
    share.watchers.watch(closed.append)
    world.table.topic_removed(["t:0"])
    assert (list(world.table), closed) == ([], [0])
    world.storage.shares.forget("t:0")
    await world.table.begin("g", [state])
    assert world.storage.shares.stored["t:0", "g"].spso == 0, "it is not taken for begun"


async def test_a_broker_closes_what_it_shared_of_a_deleted_topic(any_redis: RedisServer, raw: Any) -> None:
    raw.flushall()
    running = RunningBroker(any_redis.url)
    await running.start()
    live = await running.topic(name="shared")
    shares = running.broker.shares
    session = shares.sessions.open("g", "m")
    place = live.topic.id, 0
    shares.sessions.add(session, [place])
    await shares.begin("g", [PartitionState(live.topic.name, *place, 1)])
    await shares.find("g", place).ready()
    assert [share.log.topic for share in shares] == [live.topic.name]
    await running.broker.topics.delete(live.topic.name)
    assert list(shares) == []
    await running.stop()
