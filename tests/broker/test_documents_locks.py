"""Changes of two brokers at a time lose neither."""

import asyncio
from collections.abc import Mapping

import pytest
import redis
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer

from headrace.broker.admin.quotas import Quotas
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.documents import Changing
from headrace.membership.view import Lock
from headrace.security.quotas.entities import USER, Entity, Filter, Key
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable


async def several(open_storage: OpenStorage, any_redis: RedisServer, count: int) -> list[RedisStorage]:
    """Brokers of one view."""
    with redis.Redis.from_url(any_redis.url) as raw:
        raw.hset("headrace:{meta}:view", "number", "1")
    storages = [await open_storage() for _ in range(count)]
    for each in storages:
        each.fence.hurry = lambda: None
    return storages


async def test_quotas_set_at_three_brokers_at_once_are_all_kept(
    open_storage: OpenStorage, any_redis: RedisServer
) -> None:
    storages = await several(open_storage, any_redis, 3)
    brokers = [Quotas(each.documents, BrokerSettings.of({}), ManualClock()) for each in storages]
    jane = Entity(((USER, "jane"),))
    keys = (Key.PRODUCE, Key.FETCH, Key.REQUESTS)
    others = [Entity(((USER, f"user-{number}"),)) for number in range(45)]
    await asyncio.gather(
        *(quotas.of("default").alter({jane: {key: 7.0}}) for quotas, key in zip(brokers, keys, strict=True)),
        *(brokers[number % 3].of("default").alter({each: {Key.FETCH: 1.0}}) for number, each in enumerate(others)),
    )
    for quotas in brokers:
        await quotas.load()
        found = quotas.of("default").found(Filter({}, frozenset({USER}), strict=True))
        assert found == {jane: dict.fromkeys(keys, 7.0), **{each: {Key.FETCH: 1.0} for each in others}}


class Counter:
    """A broker that adds one to what it knows."""

    def __init__(self, storage: RedisStorage) -> None:
        self._storage = storage
        self.changing = Changing(storage.documents, "name", frozenset({"count"}), self._refresh)
        self.known = 0
        self.refreshed = 0

    async def _refresh(self, _: frozenset[str]) -> None:
        self.refreshed += 1
        self.known = int((await self._storage.documents.load("count")).get("it", b"0"))

    async def add(self) -> None:
        async with self.changing.alone():
            await asyncio.sleep(0)
            await self.changing.save({("count", "it"): b"%d" % (self.known + 1)})
            self.known += 1


async def test_each_change_goes_by_what_the_one_before_it_left(
    open_storage: OpenStorage, any_redis: RedisServer
) -> None:
    storages = await several(open_storage, any_redis, 2)
    counters = [Counter(each) for each in storages]
    await asyncio.gather(*(each.add() for each in counters * 10))
    assert int((await storages[0].documents.load("count"))["it"]) == 20


async def test_only_documents_changed_by_others_are_read_again(
    open_storage: OpenStorage, any_redis: RedisServer
) -> None:
    storages = await several(open_storage, any_redis, 2)
    first, second = (Counter(each) for each in storages)
    for _ in range(3):
        await first.add()
    assert first.refreshed == 1
    await second.add()
    # Without the lock, as older builds write, which count nothing, and what is decided by nothing.
    await storages[1].documents.save({("count", "it"): b"40"})
    await first.add()
    assert (first.known, first.refreshed) == (41, 2)


@pytest.mark.parametrize("alone", [True, False])
async def test_what_was_in_doubt_is_looked_up(
    open_storage: OpenStorage, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    storage = await open_storage() if alone else (await several(open_storage, any_redis, 1))[0]
    counter = Counter(storage)
    for _ in range(2):
        await counter.add()
    assert counter.refreshed == 1
    save = storage.documents.save

    async def lost(changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        await save(changes, lock)
        raise StorageUnavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(storage.documents, "save", lost)
        with pytest.raises(StorageUnavailable):
            await counter.add()
    # Memory has not what is stored.
    for _ in range(2):
        await counter.add()
    assert (counter.known, counter.refreshed) == (5, 2)
