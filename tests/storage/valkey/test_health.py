import asyncio
import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis.asyncio
import structlog
from tests.harness.redis import RedisServer

from headrace.storage.storage import RedisStorage
from headrace.storage.valkey.health import Watch
from headrace.topics.errors import StorageUnavailable

MIB = 1 << 20


async def nothing() -> None:
    """A PING that is answered."""


def told(logged: list[Any]) -> list[tuple[str, str]]:
    return [(line["log_level"], line["event"]) for line in logged]


async def test_a_redis_that_responds_is_not_logged() -> None:
    with structlog.testing.capture_logs() as logged:
        await Watch(nothing, None).look_at_redis()
    assert logged == []


async def test_a_slow_redis_is_reported_before_and_after_it_answers() -> None:
    answer = asyncio.Event()

    async def ping() -> None:
        await answer.wait()

    with structlog.testing.capture_logs() as logged:
        looking = asyncio.create_task(Watch(ping, None, slow_s=0.001).look_at_redis())
        while not logged:
            await asyncio.sleep(0)
        assert told(logged) == [("warning", "Redis is slow: no response to PING yet")]
        answer.set()
        await looking
    assert told(logged)[1:] == [("info", "Redis has responded")]


async def test_an_unavailable_redis_is_reported_elsewhere() -> None:
    async def ping() -> None:
        raise StorageUnavailable("no connection to Redis")

    with structlog.testing.capture_logs() as logged:
        await Watch(ping, None).look_at_redis()
    assert logged == []


async def test_a_redis_that_evicts_is_reported_once_and_again_at_the_end() -> None:
    with RedisServer() as server:
        admin = redis.asyncio.from_url(server.url)
        storage = await RedisStorage.open(server.url, admin, 1)
        watch = Watch(storage.ping, None, evicting=storage.evicting)
        try:
            with structlog.testing.capture_logs() as logged:
                await watch.look_at_settings()
                await admin.config_set("maxmemory", 100 * MIB)
                await admin.config_set("maxmemory-policy", "allkeys-lru")
                for _ in range(3):
                    await watch.look_at_settings()
                assert told(logged) == [("error", "Redis may remove acknowledged records")]
                assert "maxmemory-policy allkeys-lru): whole partitions would vanish; set" in logged[0]["reason"]
                await admin.config_set("maxmemory-policy", "noeviction")
                for _ in range(2):
                    await watch.look_at_settings()
            assert told(logged)[1:] == [("info", "Redis no longer removes keys when it is full")]
        finally:
            await storage.close()


async def test_without_a_report_the_previous_eviction_policy_is_assumed() -> None:
    answers = ["it does", None, "it does", "", None]

    async def evicting() -> str | None:
        return answers.pop(0)

    watch = Watch(nothing, None, evicting=evicting)
    with structlog.testing.capture_logs() as logged:
        while answers:
            await watch.look_at_settings()
    assert [line["log_level"] for line in logged] == ["error", "info"]


def test_a_filling_disk_is_reported_per_quarter_gibibyte_and_once_when_there_is_room() -> None:
    free = 0
    watch = Watch(nothing, Path("/data"), lambda _path: free)
    lines = []
    for mib in (2_000, 1_024, 1_000, 990, 770, 700, 200, 600, 1_500, 2_000, 100):
        free = mib * MIB
        with structlog.testing.capture_logs() as logged:
            watch.look_at_disk()
        lines.append(told(logged))
    full, room = [("warning", "the disk is nearly full")], [("info", "the disk has free space again")]
    assert lines == [[], [], full, [], [], full, full, [], room, [], full]


def test_a_missing_directory_is_reported_once_and_so_is_its_return() -> None:
    there = True

    def free(_: Path) -> int:
        if not there:
            raise FileNotFoundError(2, "No such file or directory")
        return 1 << 40

    watch = Watch(nothing, Path("data"), free)
    lines = []
    for there in (True, False, False, True, True):  # noqa: B007  # `free` looks at it
        with structlog.testing.capture_logs() as logged:
            watch.look_at_disk()
        lines.append(told(logged))
    gone = ("error", "the data directory is missing: no record is accepted until it is available again")
    assert lines == [[], [gone], [], [("info", "the data directory is available again")], []]


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process may open nothing more; what is open stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_lack_of_descriptors_is_reported_once_and_so_is_its_end() -> None:
    watch = Watch(nothing, None)
    lines = []
    for lacking in (False, True, True, True, False, False, True):
        with structlog.testing.capture_logs() as logged, no_descriptors() if lacking else contextlib.nullcontext():
            watch.look_at_descriptors()
        lines.append([(line["log_level"], line.get("whose"), line.get("seconds_without")) for line in logged])
    lack = [("error", "this process", None)]
    assert lines == [[], lack, [], [], [("info", None, 15)], [], lack]
