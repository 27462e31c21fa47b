import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff

from headrace.keyspace.keys import Keyspace
from headrace.store.embedded import EmbeddedValkey
from headrace.store.lease import KeyspaceTaken, Lease, bump_epoch
from headrace.store.tasks import end

TTL_MS = 300
KEY, EPOCH = Keyspace().lease, Keyspace().epoch
Client = redis.asyncio.Redis


def lease(client: Client, owner: str, ttl_ms: int = TTL_MS) -> Lease:
    return Lease(client, KEY, EPOCH, owner, ttl_ms=ttl_ms)


async def die(owned: Lease) -> None:
    """What a crash does: no more renewals, no release."""
    assert owned._renewing is not None
    await end(owned._renewing)


async def check_one_owner_after_the_other(client: Client) -> None:
    """A life of the lease; the same on every server."""
    first, second, third = (lease(client, f"pid {n} on here") for n in (1, 2, 3))
    said: list[str] = []
    assert await first.acquire(said.append) == 1
    assert said == []
    with pytest.raises(KeyspaceTaken, match=r"pid 1 on here, since 20.*--redis"):
        await second.acquire(said.append)
    assert len(said) == 1
    assert "pid 1 on here" in said[0]
    await first.release()
    assert await second.acquire(said.append) == 2
    await die(second)
    assert await third.acquire(said.append) == 3
    assert len(said) == 2
    await third.release()
    assert await client.exists(KEY) == 0
    assert await client.ttl(EPOCH) == -1, "an epoch that expires would be given twice"


async def test_one_owner_after_the_other(client: Client) -> None:
    await check_one_owner_after_the_other(client)


@pytest.fixture
def debian_socket(short_path: Path) -> Iterator[str]:
    """Debian's redis-server is starting on this socket."""
    program = shutil.which("redis-server")
    assert program is not None, "redis-server is missing: apt-get install redis-server"
    socket = str(short_path / "sock")
    command = [program, "--port", "0", "--unixsocket", socket, "--dir", str(short_path), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        yield socket
        server.kill()


@pytest.fixture
async def debian_redis(debian_socket: str) -> AsyncIterator[Client]:
    retry = Retry(ConstantBackoff(0.005), 2_000)
    async with Client(unix_socket_path=debian_socket, retry=retry) as link:
        yield link


@pytest.mark.apt
async def test_one_owner_after_the_other_on_debians_redis(debian_redis: Client) -> None:
    await check_one_owner_after_the_other(debian_redis)


@pytest.mark.apt
async def test_a_full_redis_keeps_its_server_on_debians_redis(debian_redis: Client) -> None:
    await check_full(debian_redis)


async def check_full(client: Client) -> None:
    await client.set("filler", b"x" * (4 << 20))
    await client.config_set("maxmemory", 1 << 20, "maxmemory-policy", "noeviction")
    try:
        with pytest.raises(redis.OutOfMemoryError):
            await client.set("more", b"x")
        owned = lease(client, "pid 1")
        assert await owned.acquire(print) == 1
        assert await owned._renew() == ["kept"]
        assert await bump_epoch(client, EPOCH) == 2
        await owned.release()
    finally:
        await client.config_set("maxmemory", 0)


async def test_a_full_redis_keeps_its_server(client: Client) -> None:
    await check_full(client)


async def test_a_living_owner_is_renewed_past_its_time(client: Client) -> None:
    owned = lease(client, "pid 1", ttl_ms=90)
    await owned.acquire(print)
    async with asyncio.timeout(10):
        while int(await client.hget(KEY, "renewals") or 0) < 5:
            await asyncio.sleep(0.01)
    assert await client.hget(KEY, "owner") == b"pid 1"
    assert 0 < await client.pttl(KEY) <= 90
    await owned.release()


async def test_a_waiting_server_gets_it_as_soon_as_it_is_released(client: Client) -> None:
    first, second = lease(client, "pid 1", ttl_ms=60_000), lease(client, "pid 2", ttl_ms=200)
    waits = asyncio.Event()
    await first.acquire(print)
    taking = asyncio.create_task(second.acquire(lambda _line: waits.set()))
    await waits.wait()
    await first.release()
    async with asyncio.timeout(10):
        assert await taking == 2
    await second.release()


async def test_of_two_that_wait_one_gets_it(client: Client) -> None:
    dead = lease(client, "pid 1")
    await dead.acquire(print)
    await die(dead)
    second, third = lease(client, "pid 2"), lease(client, "pid 3")
    outcomes = await asyncio.gather(second.acquire(print), third.acquire(print), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["KeyspaceTaken", "int"]
    assert 2 in outcomes
    for one in (second, third):
        await one.release()


def listen(owned: Lease) -> "asyncio.Future[str]":
    """Comes true with the reason when it is lost; an error when it is lost twice."""
    reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    owned.on_lost = reason.set_result
    return reason


async def test_an_owner_that_was_replaced_is_told_by_whom(client: Client) -> None:
    owned = lease(client, "pid 1")
    lost = listen(owned)
    await owned.acquire(print)
    # As after a long sleep of this machine: the lease ran out, another server took it.
    other = lease(client, "pid 2 on elsewhere")
    async with client.pipeline() as both:
        both.delete(KEY)
        both.hset(KEY, mapping={"token": other._token, "owner": "pid 2 on elsewhere", "since": 0, "renewals": 0})
        both.incr(EPOCH)
        await both.execute()
    reason = await asyncio.wait_for(lost, 10)
    assert reason == "another server took this keyspace over by the server pid 2 on elsewhere: epoch 1 is over, now 2"
    await owned.release()
    assert await client.hget(KEY, "owner") == b"pid 2 on elsewhere", "a lease of others is not released"


async def test_an_owner_is_told_when_only_the_epoch_was_raised(client: Client) -> None:
    owned = lease(client, "pid 1")
    lost = listen(owned)
    await owned.acquire(print)
    assert await bump_epoch(client, EPOCH) == 2
    assert await asyncio.wait_for(lost, 10) == "another server took this keyspace over: epoch 1 is over, now 2"
    await owned.release()


async def test_an_owner_is_told_when_the_keyspace_was_emptied(client: Client) -> None:
    owned = lease(client, "pid 1")
    lost = listen(owned)
    await owned.acquire(print)
    await client.flushall()
    assert "emptied" in await asyncio.wait_for(lost, 10)
    await owned.release()


async def test_a_lease_that_ran_out_and_was_taken_by_nobody_is_made_again(client: Client) -> None:
    owned = lease(client, "pid 1", ttl_ms=150)
    await owned.acquire(print)
    await client.delete(KEY)
    async with asyncio.timeout(10):
        while not await client.exists(KEY):
            await asyncio.sleep(0.005)
    assert await client.hgetall(KEY) != {}
    assert 0 < await client.pttl(KEY) <= 150
    await owned.release()
    assert not await client.exists(KEY)


async def test_a_lease_without_an_end_keeps_nobody_out(client: Client) -> None:
    dead = lease(client, "pid 1")
    await dead.acquire(print)
    await die(dead)
    await client.persist(KEY)
    owned = lease(client, "pid 2")
    assert await owned.acquire(print) == 2
    await owned.release()


async def test_a_redis_that_was_away_longer_than_the_lease_costs_nobody_the_keyspace(tmp_path: Path) -> None:
    """Nobody else can have taken it meanwhile, and if somebody does, the epoch tells."""
    valkey = EmbeddedValkey(tmp_path)
    async with redis.asyncio.from_url(await valkey.start()) as client:
        owned = lease(client, "pid 1", ttl_ms=150)
        lost = listen(owned)
        await owned.acquire(print)
        await valkey.stop()
        await asyncio.sleep(0.2)
        valkey = EmbeddedValkey(tmp_path)
        await valkey.start()
        async with asyncio.timeout(10):
            while not await client.exists(KEY):
                await asyncio.sleep(0.005)
        assert not lost.done()
        await owned.release()
        assert not await client.exists(KEY)
        await valkey.stop()


async def test_a_lease_never_acquired_releases_nothing(client: Client) -> None:
    await lease(client, "pid 1").release()


async def test_a_redis_that_does_not_answer_is_an_error() -> None:
    async with Client(unix_socket_path="/nonexistent/sock", retry=Retry(NoBackoff(), 0)) as nobody:
        with pytest.raises(redis.ConnectionError):
            await lease(nobody, "pid 1").acquire(print)


async def test_epochs_without_a_lease_count_from_one(client: Client) -> None:
    assert [await bump_epoch(client, EPOCH) for _ in range(3)] == [1, 2, 3]
    assert await client.ttl(EPOCH) == -1
