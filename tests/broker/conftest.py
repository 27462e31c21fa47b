import gc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis.asyncio
from tests.broker.transactional import Log
from tests.broker.world import World
from tests.harness.memory import MemoryStorage
from tests.harness.redis import RedisServer

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.groups.model import GroupSettings
from headrace.testing.clock import ManualClock


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def budget() -> CacheBudget:
    return CacheBudget(1 << 20)


@pytest.fixture
def drop_cached(budget: CacheBudget) -> Callable[[], None]:
    """Drops every batch that is in memory, as if it had been needed for others."""

    def drop() -> None:
        limit, budget.limit = budget.limit, -1
        budget.shrink()
        budget.limit = limit

    return drop


@pytest.fixture
async def partition(storage: MemoryStorage, budget: CacheBudget, clock: ManualClock) -> LeaderPartition:
    made = LeaderPartition("t", 0, "headrace:t:0", storage.logs, budget, clock, SnapshotSchedule())
    await made.open(create=True)
    return made


@pytest.fixture
def log(partition: LeaderPartition, storage: MemoryStorage) -> Log:
    return Log(partition, storage)


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition) -> GroupCoordinator:
    return GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition)


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url)
    await world.start()
    yield world
    await world.stop()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
