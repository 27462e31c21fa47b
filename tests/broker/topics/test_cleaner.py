"""Which logs the cleaner chooses, and when."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import structlog
from tests.harness.owning import Owner
from tests.harness.redis import RedisServer

from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.topics.cleaner import Cleaner
from headrace.records.build import build
from headrace.testing.clock import ManualClock
from headrace.topics.config import CompactionConfig
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Append, StoredBatch

NOW = 1_800_000_000_000
HOUR = 3_600_000


class Topics:
    """Topics with one partition each, and their cleaner."""

    def __init__(self, owner: Owner, **settings: str) -> None:
        self.owner = owner
        self.clock = ManualClock(NOW)
        self.live: dict[str, Any] = {}
        given = {name.replace("_", "."): value for name, value in settings.items()}
        topics: Any = self.live.values()
        self.cleaner = Cleaner(topics, owner.storage.logs, self.clock, BrokerSettings.of(given))

    async def add(self, name: str, config: CompactionConfig | None = None) -> LeaderPartition:
        made = LeaderPartition(
            name,
            0,
            f"headrace:{name}:0",
            self.owner.storage.logs,
            CacheBudget(1 << 20),
            self.clock,
            self.owner.snapshots,
        )
        await made.open(create=True)
        self.live[name] = SimpleNamespace(config=SimpleNamespace(compaction=config), partitions=[made])
        return made

    async def send(self, name: str, *keys: str | None, value: bytes | None = b"v") -> None:
        (partition,) = self.live[name].partitions
        for key in keys:
            made = build([((key or "").encode(), value, self.clock.now_ms(), ())])
            partition.append(Append(made, 1, self.clock.now_ms()), lambda _: None)
        await partition.settle()

    def end(self, name: str) -> int:
        return self.owner.storage.logs.segments.cleaned(f"headrace:{name}:0").end


@pytest.fixture
async def owner(any_redis: RedisServer) -> AsyncIterator[Owner]:
    with redis.Redis.from_url(any_redis.url) as link:
        link.flushall()
    made = await Owner.start(any_redis.url, 1)
    yield made
    await made.crash()


@pytest.fixture
async def topics(owner: Owner) -> AsyncIterator[Topics]:
    made = Topics(owner)
    yield made
    made.cleaner.close()


async def test_only_compacted_topics_are_cleaned(topics: Topics) -> None:
    for name, config in (("compact", CompactionConfig()), ("delete", None)):
        await topics.add(name, config)
        await topics.send(name, "a", "a", "a")
    assert await topics.cleaner.clean_all() == 1
    assert (topics.end("compact"), topics.end("delete")) == (2, 0)
    assert topics.cleaner.counted.passes == 1


async def test_the_dirtiest_log_is_first(topics: Topics) -> None:
    for name in ("some", "more", "all"):
        await topics.add(name, CompactionConfig(min_cleanable_dirty_ratio=0))
    for name in ("some", "more"):
        await topics.send(name, *map(str, range(20)))
    assert await topics.cleaner.clean_all() == 2
    await topics.send("some", "a")
    await topics.send("more", *map(str, range(20)))
    await topics.send("all", "a", "a")
    with structlog.testing.capture_logs() as logged:
        assert await topics.cleaner.clean_all() == 3
    assert [each["topic"] for each in logged if each["event"] == "log cleaned"] == ["all", "more", "some"]


async def test_a_log_is_cleaned_from_its_dirty_ratio_on(topics: Topics) -> None:
    await topics.add("u", CompactionConfig(min_cleanable_dirty_ratio=0.5))
    await topics.send("u", *map(str, range(20)))
    assert await topics.cleaner.clean_all() == 1
    await topics.send("u", *map(str, range(3)))
    assert await topics.cleaner.clean_all() == 0
    assert 0 < topics.cleaner.counted.max_dirty_ratio < 0.5
    await topics.send("u", *map(str, range(15)))
    assert await topics.cleaner.clean_all() == 1
    assert topics.cleaner.counted.dirty_bytes > 0
    # Nothing is new.
    assert await topics.cleaner.clean_all() == 0


async def test_an_old_record_is_reason_enough(topics: Topics) -> None:
    await topics.add("u", CompactionConfig(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR))
    await topics.send("u", *map(str, range(20)))
    assert await topics.cleaner.clean_all() == 1
    await topics.send("u", "a", "b")
    topics.clock.advance(HOUR)
    assert await topics.cleaner.clean_all() == 0
    topics.clock.advance(1)
    assert await topics.cleaner.clean_all() == 1
    assert topics.end("u") == 21


async def test_little_memory_is_reason_enough(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics.add("u", CompactionConfig(min_cleanable_dirty_ratio=1.0))
    await topics.send("u", *map(str, range(20)))
    assert await topics.cleaner.clean_all() == 1
    await topics.send("u", "a", "b")
    assert await topics.cleaner.clean_all() == 0

    async def short(_: str) -> bool:
        return True

    monkeypatch.setattr(topics.owner.storage.logs.segments, "is_memory_short", short)
    assert await topics.cleaner.clean_all() == 1


async def test_memory_is_short_above_80_percent(topics: Topics, any_redis: RedisServer) -> None:
    segments = topics.owner.storage.logs.segments
    with redis.Redis.from_url(any_redis.url) as link:
        assert not await segments.is_memory_short("headrace:u:0")
        used = link.info("memory")["used_memory"]
        for share, is_short in ((0.5, False), (0.95, True)):
            link.config_set("maxmemory", int(used / share))
            assert await segments.is_memory_short("headrace:u:0") == is_short
        link.config_set("maxmemory", 0)


async def test_a_deleted_key_goes_without_new_records(topics: Topics) -> None:
    await topics.add("u", CompactionConfig(delete_retention_ms=HOUR))
    await topics.send("u", "a", "b")
    await topics.send("u", "a", value=None)
    await topics.send("u", "c")
    assert await topics.cleaner.clean_all() == 1
    topics.clock.advance(HOUR - 1)
    assert await topics.cleaner.clean_all() == 0
    topics.clock.advance(1)
    assert await topics.cleaner.clean_all() == 1
    logs = topics.owner.storage.logs
    found = [*await logs.read("headrace:u:0", 0, 9), *await logs.read("headrace:u:0", 2, 9)]
    assert [each.base_offset for each in found] == [1, 3]


async def test_a_failed_pass_is_reported_and_repeated(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics.add("u", CompactionConfig())
    await topics.send("u", "a", "a", "a")

    async def fails(*_: Any) -> None:
        raise StorageUnavailable("gone")

    with monkeypatch.context() as patched, structlog.testing.capture_logs() as logged:
        patched.setattr(topics.owner.storage.logs.segments, "advance", fails)
        assert await topics.cleaner.clean_all() == 0
    assert [each["reason"] for each in logged if each["event"] == "log not cleaned"] == ["gone"]
    assert topics.cleaner.counted.failures == 1
    assert await topics.cleaner.clean_all() == 1


async def test_a_log_that_cannot_be_cleaned_does_not_keep_others_waiting(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "u"):
        await topics.add(name, CompactionConfig(min_compaction_lag_ms=1))
        await topics.send(name, "a", "a", "a")
    topics.clock.advance(HOUR)
    real = topics.owner.storage.logs.read

    async def reads(stream: str, *arguments: Any) -> Any:
        found = await real(stream, *arguments)
        if stream == "headrace:broken:0":
            return [StoredBatch(each.base_offset, each.next_offset, b"short") for each in found]
        return found

    monkeypatch.setattr(topics.owner.storage.logs, "read", reads)
    with structlog.testing.capture_logs() as told:
        assert await topics.cleaner.clean_all() == 1
    assert [each["topic"] for each in told if each["event"] == "log not cleaned"] == ["broken"]
    assert topics.end("u") == 2
    assert topics.cleaner.counted.failures == 1


async def test_a_changed_policy_ends_a_pass(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics.add("u", CompactionConfig())
    await topics.send("u", "a", "a", "a")
    real = topics.owner.storage.logs.read

    async def changes(*arguments: Any) -> Any:
        topics.live["u"].config = SimpleNamespace(compaction=None)
        return await real(*arguments)

    monkeypatch.setattr(topics.owner.storage.logs, "read", changes)
    assert await topics.cleaner.clean_all() == 0
    assert topics.end("u") == 0
    assert topics.cleaner.counted.failures == 0


async def test_bytes_per_second_are_limited(owner: Owner) -> None:
    topics = Topics(owner, log_cleaner_io_max_bytes_per_second="1000")
    waiting = asyncio.create_task(topics.cleaner.spent(2_000))
    for _ in range(19):
        await asyncio.sleep(0)
        topics.clock.advance(100)
        await asyncio.sleep(0)
        assert not waiting.done()
    topics.clock.advance(100)
    await waiting
    topics.cleaner.close()
