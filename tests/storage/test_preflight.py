"""Requirements on a Redis, and the warnings for one without persistence."""

import pytest
import redis
import redis.asyncio
from tests.conftest import OpenStorage
from tests.harness.redis import RedisServer, debian_redis_program, valkey_program

from headrace.storage.errors import TooOld
from headrace.storage.preflight import Durability
from headrace.storage.storage import RedisStorage


async def test_a_redis_that_is_too_old_is_refused(open_storage: OpenStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def old(_: object, section: str) -> dict[str, str]:
        return {"redis_version": "6.2.14"}

    monkeypatch.setattr(redis.asyncio.Redis, "info", old)
    with pytest.raises(TooOld, match=r"Redis 6\.2\.14 is too old"):
        await open_storage()


# Durability
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Durability(), []),
        (Durability(append_only="yes", fsync="no", eviction="noeviction"), []),
        (Durability(append_only="yes", fsync="always", save="3600 1"), []),
        (Durability(append_only="yes", fsync="everysec"), ["everysec"]),
        (Durability(append_only="no"), ["nothing on disk"]),
        (Durability(append_only="no", save="3600 1"), ["snapshots only"]),
        (Durability(append_only="yes", fsync="always", eviction="allkeys-lru"), ["allkeys-lru"]),
        (Durability(append_only="no", eviction="volatile-ttl"), ["nothing on disk", "volatile-ttl"]),
    ],
)
def test_the_warnings_for_an_operator(found: Durability, words: list[str]) -> None:
    warnings = found.warnings()
    assert len(warnings) == len(words)
    for warning, word in zip(warnings, words, strict=True):
        assert word in warning


_PROGRAMS = {"valkey": valkey_program, "redis": debian_redis_program}


@pytest.mark.parametrize("program", ["valkey", pytest.param("redis", marks=pytest.mark.apt)])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {},
            Durability(
                append_only="no",
                fsync="everysec",
                save="",
                eviction="noeviction",
                compression="yes",
                rewriting="100",
            ),
        ),
        (
            {
                "appendonly": "yes",
                "appendfsync": "no",
                "save": "60 1000",
                "maxmemory-policy": "allkeys-lfu",
                "rdbcompression": "no",
                "auto-aof-rewrite-percentage": "0",
            },
            Durability(
                append_only="yes",
                fsync="no",
                save="60 1000",
                eviction="allkeys-lfu",
                compression="no",
                rewriting="0",
            ),
        ),
    ],
)
async def test_what_redis_reports_about_itself(program: str, options: dict[str, str], expected: Durability) -> None:
    with RedisServer(_PROGRAMS[program](), options) as server:
        storage = await RedisStorage.open(server.url, redis.asyncio.from_url(server.url), 1)
        assert await storage.durability() == expected
        await storage.close()


async def test_a_cloud_service_without_config_reports_nothing() -> None:
    with RedisServer() as server:
        admin = redis.asyncio.from_url(server.url)
        await admin.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"])
        storage = await RedisStorage.open(server.url, admin, 1)
        assert await storage.durability() == Durability()
        await storage.close()
