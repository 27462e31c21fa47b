"""Locks of several brokers, over one Redis."""

import asyncio
import contextlib
from typing import Any

import pytest
import redis
from tests.conftest import OpenStorage
from tests.harness.waiting import until

from headrace.storage import documents
from headrace.storage.storage import RedisStorage
from headrace.topics.errors import LockLost, StorageUnavailable

KEY = "headrace:{meta}:lock:name"


async def two(open_storage: OpenStorage, raw: "redis.Redis") -> list[RedisStorage]:
    """Two brokers of one view."""
    raw.hset("headrace:{meta}:view", "number", "1")
    storages = [await open_storage() for _ in range(2)]
    for each in storages:
        each.fence.hurry = lambda: None
    return storages


async def test_one_waits_until_the_other_has_left(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    first, second = await two(open_storage, raw)
    seen = []

    async def late() -> None:
        async with second.documents.locked("name"):
            seen.append("second")

    async with first.documents.locked("name"), first.documents.locked("another"):
        waiting = asyncio.create_task(late())
        for _ in range(5):
            await first.documents.load("a")
        seen.append("first")
    await waiting
    assert seen == ["first", "second"]
    assert not raw.exists(KEY)


async def test_who_has_died_is_waited_for_no_longer_than_its_lease(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    _, second = await two(open_storage, raw)
    raw.set(KEY, "of a dead one", px=50)
    async with second.documents.locked("name"):
        assert raw.get(KEY) != "of a dead one"
        assert 0 < raw.pttl(KEY) <= documents.LEASE_MS


async def test_a_lock_is_kept_for_as_long_as_it_takes(
    open_storage: OpenStorage, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_KEPT_S", 0.001)
    first, _ = await two(open_storage, raw)
    async with first.documents.locked("name"):
        raw.pexpire(KEY, 60_000)
        await until(lambda: raw.pttl(KEY) <= documents.LEASE_MS)
    assert not raw.exists(KEY)


async def test_a_wait_in_vain_is_reported(
    open_storage: OpenStorage, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_PATIENCE_S", 0.0)
    first, second = await two(open_storage, raw)
    async with first.documents.locked("name"):
        with pytest.raises(LockLost, match="nothing was changed, try again"):
            async with second.documents.locked("name"):
                pass
    async with second.documents.locked("name"):
        pass


async def test_changes_under_a_lost_lock_are_not_written(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    first, second = await two(open_storage, raw)
    async with first.documents.locked("name") as lost:
        # As if the first one had stood still for longer than its lease.
        raw.delete(KEY)
        async with second.documents.locked("name") as held:
            with pytest.raises(LockLost, match="nothing was written"):
                await first.documents.save({("a", "1"): b"old"}, lost)
            assert await second.documents.save({("a", "1"): b"new"}, held) == {"a": 1}
    assert await first.documents.load("a") == {"1": b"new"}
    async with second.documents.locked("name"):
        assert raw.exists(KEY), "the first one has not given back what was not its own any more"


async def test_revisions_show_changes_of_other_brokers(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    first, second = await two(open_storage, raw)
    async with first.documents.locked("name") as lock:
        assert lock.revisions == {}
        assert await first.documents.save({("a", "1"): b"x", ("b", "1"): b"x"}, lock) == {"a": 1, "b": 1}
        assert await first.documents.save({("b", "1"): None}, lock) == {"b": 2}
    assert await first.documents.save({("c", "1"): b"x"}) == {"c": 1}
    async with second.documents.locked("name") as lock:
        assert lock.revisions == {"a": 1, "b": 2, "c": 1}


async def test_who_is_alone_needs_no_lock(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    storage = await open_storage()
    async with storage.documents.locked("name") as lock, storage.documents.locked("name"):
        assert lock.revisions == {}
        assert await storage.documents.save({("a", "1"): b"x"}, lock) == {}
    assert raw.keys("*lock*") + raw.keys("*revisions*") == []


async def test_locks_and_documents_while_redis_is_full(open_storage: OpenStorage, raw: "redis.Redis") -> None:
    first, _ = await two(open_storage, raw)
    raw.config_set("maxmemory", 1)
    try:
        async with first.documents.locked("name") as lock:
            await first.documents.save({("a", "1"): b"one"}, lock)
    finally:
        raw.config_set("maxmemory", 0)


async def test_who_gives_back_what_others_want_waits_until_they_have_it(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    first, second = await two(open_storage, raw)
    seen = []

    async def late() -> None:
        async with second.documents.locked("name"):
            seen.append("second")

    async with first.documents.locked("name"):
        waiting = asyncio.create_task(late())
        await until(lambda: raw.exists(f"{KEY}:wanted"))
    async with first.documents.locked("name"):
        seen.append("first")
    await waiting
    assert seen == ["second", "first"]


async def test_a_lost_lock_is_not_taken_again_by_keeping_it(
    open_storage: OpenStorage, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_KEPT_S", 0.001)
    first, second = await two(open_storage, raw)
    async with first.documents.locked("name") as lost:
        # As if the first one had been paused while another one began and ended its change.
        raw.delete(KEY)
        commands = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        await until(lambda: raw.info("commandstats")["cmdstat_evalsha"]["calls"] > commands)
        assert not raw.exists(KEY)
        with pytest.raises(LockLost, match="nothing was written"):
            await first.documents.save({("a", "1"): b"old"}, lost)
    assert await second.documents.load("a") == {}


async def test_a_lost_lock_keeps_the_waiting_mark_of_its_new_holder(
    open_storage: OpenStorage, raw: "redis.Redis"
) -> None:
    first, _ = await two(open_storage, raw)
    async with first.documents.locked("name"):
        # As if the first one had been paused while another one began its change, for whose end a third one waits.
        raw.set(KEY, "another's")
        raw.set(f"{KEY}:wanted", "", px=60_000)
    assert raw.get(KEY) == "another's"
    assert raw.exists(f"{KEY}:wanted")


@pytest.mark.parametrize("lost", ["take_lock", "leave_lock"])
async def test_a_lock_whose_answer_was_lost_is_given_back_at_once(
    open_storage: OpenStorage, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Others would wait in vain until its lease expires."""
    monkeypatch.setattr(documents, "LEASE_MS", 60_000)
    first, second = await two(open_storage, raw)
    run = first.scripts.run
    asked: list[str] = []

    async def lossy(name: str, *arguments: Any) -> Any:
        if name != lost or asked:
            return await run(name, *arguments)
        asked.append(name)
        if lost == "take_lock":
            await run(name, *arguments)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(first.scripts, "run", lossy)
    with contextlib.suppress(StorageUnavailable):
        async with first.documents.locked("name"):
            assert lost == "leave_lock"
    assert asked == [lost]
    async with second.documents.locked("name"):
        pass
    assert not raw.exists(KEY)
