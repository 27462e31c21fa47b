import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis.asyncio
import structlog
from tests.harness.redis import RedisServer, debian_redis_program
from tests.harness.redis_cluster import RedisCluster

from headrace.storage.redis.clients import Primary, asynchronous, primaries
from headrace.storage.valkey.maintenance import DUE_PERIOD_S, PERIOD_S, RedisMaintenance

BUSY = {"appendonly": "yes", "save": "60 10000", "rdbcompression": "yes", "auto-aof-rewrite-percentage": "100"}
"""What Redis' defaults are."""
FOR_A_LOG = {"appendonly": "yes", "save": "", "rdbcompression": "no", "auto-aof-rewrite-percentage": "0"}


@pytest.fixture(params=["valkey", pytest.param("redis", marks=pytest.mark.apt)])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(debian_redis_program() if request.param == "redis" else None, BUSY) as running:
        yield running


@pytest.fixture
async def admin(server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    async with asynchronous(server.url) as client:
        yield client


async def _settings(admin: redis.asyncio.Redis) -> list[dict[str, str]]:
    return [await each.ask("config_get", *BUSY) for each in await primaries(admin)]


async def _let_guest(admin: redis.asyncio.Redis, *rules: str) -> None:
    asked: Any = admin
    await asked.execute_command("ACL", "SETUSER", "guest", *rules)


async def test_a_redis_is_set_for_a_log_with_each_look(admin: redis.asyncio.Redis) -> None:
    managing = RedisMaintenance(admin)
    with structlog.testing.capture_logs() as logs:
        assert await managing.look() == PERIOD_S
        assert await _settings(admin) == [FOR_A_LOG]
        # Started again, or another one in its place.
        await admin.config_set("auto-aof-rewrite-percentage", "100")
        await managing.look()
        await managing.look()
    assert await _settings(admin) == [FOR_A_LOG]
    assert [each["event"] for each in logs] == 2 * ["Redis settings changed"]
    assert logs[1]["auto_aof_rewrite_percentage"] == "0"
    assert "rdbcompression" not in logs[1]


async def test_a_redis_without_an_append_only_file_keeps_its_snapshots(admin: redis.asyncio.Redis) -> None:
    await admin.config_set("appendonly", "no")
    assert await RedisMaintenance(admin).look() == PERIOD_S
    assert await _settings(admin) == [BUSY | {"appendonly": "no"}]


async def test_its_file_is_rewritten_when_most_of_it_is_gone(admin: redis.asyncio.Redis) -> None:
    managing = RedisMaintenance(admin, least_bytes=4 << 20)
    await managing.look()
    for _ in range(6):
        await admin.set("key", b"x" * (1 << 20))
    await admin.delete("key")
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 2:
            enough.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(managing.keep_looking(PERIOD_S, pause))
    async with asyncio.timeout(60):
        await enough.wait()
        while int((await admin.info("persistence"))["aof_current_size"]) > 1 << 20:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert pauses == [PERIOD_S, DUE_PERIOD_S, PERIOD_S]


async def test_a_refusing_redis_is_reported_once_for_each_reason(
    server: RedisServer, admin: redis.asyncio.Redis
) -> None:
    await _let_guest(admin, "on", ">secret", "~*", "+@all", "-config|set")
    async with redis.asyncio.from_url(server.url, username="guest", password="secret") as guest:
        managing = RedisMaintenance(guest)
        with structlog.testing.capture_logs() as logs:
            assert await managing.look() == PERIOD_S
            await managing.look()
        assert [each["log_level"] for each in logs] == ["warning"]
        assert "config|set" in logs[0]["reason"]
        await _let_guest(admin, "+config|set")
        await managing.look()
        await _let_guest(admin, "-config|set")
        await admin.config_set("save", "60 1")
        with structlog.testing.capture_logs() as logs:
            await managing.look()
    assert [each["log_level"] for each in logs] == ["warning"]


async def test_an_unavailable_redis_is_reported_and_configured_when_it_returns(
    server: RedisServer, admin: redis.asyncio.Redis
) -> None:
    managing = RedisMaintenance(admin)
    server.kill()
    with structlog.testing.capture_logs() as logs:
        assert await managing.look() == PERIOD_S
    assert [each["log_level"] for each in logs] == ["warning"]
    server.start()
    await managing.look()
    assert await _settings(admin) == [FOR_A_LOG]


async def test_a_second_outage_of_a_cluster_is_reported_again(
    admin: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Primary(admin)
    node.name = "127.0.0.1:7000"
    is_away = iter([False, True, True, False, True])

    async def tell(_: redis.asyncio.Redis) -> list[Primary]:
        if next(is_away):
            raise redis.exceptions.ConnectionError("none of its nodes answers")
        return [node]

    monkeypatch.setattr("headrace.storage.valkey.maintenance.primaries", tell)
    managing = RedisMaintenance(admin)
    await managing.look()
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await managing.look()
    assert [each["reason"] for each in logs] == 2 * ["none of its nodes answers"]


@pytest.mark.redis_cluster
async def test_every_primary_of_a_cluster_is_configured_although_one_refuses() -> None:
    with RedisCluster(replicas=0) as cluster:
        for node in cluster.nodes:
            for name, value in BUSY.items():
                node.ask("CONFIG", "SET", name, value)
        cluster.nodes[0].ask("ACL", "SETUSER", "default", "-config|set")
        async with asynchronous(cluster.url) as admin:
            managing = RedisMaintenance(admin)
            with structlog.testing.capture_logs() as logs:
                await managing.look()
            found: list[dict[str, Any]] = await _settings(admin)
    assert sorted(found, key=str) == sorted([BUSY, FOR_A_LOG, FOR_A_LOG], key=str)
    told = [(each["log_level"], each["server"].rpartition(":")[0]) for each in logs]
    assert sorted(told) == sorted(
        [("warning", cluster.nodes[0].host), *(("info", node.host) for node in cluster.nodes[1:])]
    )
