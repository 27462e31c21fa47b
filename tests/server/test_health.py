"""Health for probes."""

import asyncio
from typing import cast

from headrace.broker.virtual_clusters import VirtualClusters
from headrace.server.health import HealthCheck
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import TopicError


class Storage:
    """A storage that is queried, and does not answer while `hangs`."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.queries = 0
        self.fails = ""
        self.unreadable = self
        self.told = ""

    async def unanswered(self, _: float) -> list[str]:
        self.queries += 1
        await self.answers.wait()
        if self.fails:
            raise TopicError(self.fails)
        return []


def check(storage: Storage, clock: ManualClock) -> HealthCheck:
    return HealthCheck(cast("RedisStorage", storage), cast("VirtualClusters", ()), clock)


async def test_a_recent_check_answers_probes_while_the_storage_is_busy() -> None:
    storage, clock = Storage(), ManualClock()
    health = check(storage, clock)
    assert (await health.look()).storage
    storage.answers.clear()
    clock.advance(1_000)
    assert (await asyncio.wait_for(health.look(), 10)).storage
    assert storage.queries == 1


async def test_a_probe_waits_for_a_new_check_after_a_second() -> None:
    storage, clock = Storage(), ManualClock()
    health = check(storage, clock)
    assert (await health.look()).storage
    storage.answers.clear()
    clock.advance(1_001)
    probes = [asyncio.create_task(health.look()) for _ in range(100)]
    while storage.queries < 2:
        await asyncio.sleep(0)
    storage.fails = "no answer from Redis"
    storage.answers.set()
    found = await asyncio.gather(*probes)
    assert {(each.storage, each.detail) for each in found} == {(False, "no answer from Redis")}
    assert storage.queries == 2


async def test_checks_continue_without_probes() -> None:
    storage = Storage()
    running = asyncio.create_task(check(storage, ManualClock()).run())
    try:
        async with asyncio.timeout(10):
            while storage.queries < 2:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
