"""The barrier of `min.insync.replicas` over a primary without replicas; with replicas: tests/cluster/test_copies.py."""

import asyncio

from tests.harness.valkey import running_valkey

from headrace.storage.logs.replicas import RedisReplicas
from headrace.storage.redis.connection import Connection
from headrace.topics.errors import StorageUnavailable

FEW = (
    "min.insync.replicas=2: 1 server has all that Redis acknowledged, its primary included; "
    "replicas are away or lag behind"
)


async def test_who_has_no_time_left_does_not_cut_off_the_round_of_the_others() -> None:
    """A wait of a millisecond is over before a query that is in flight ends."""
    async with running_valkey() as valkey:
        batches = Connection(valkey.url, standing=True)
        await batches.open()
        copies = RedisReplicas(batches, 60_000)
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        try:
            copies.confirm("headrace:t:0", 2, -60_000, told.set_result)
            assert str(await told) == FEW
        finally:
            await copies.close()
            await batches.close()


class Moving:
    """`Shards` with one log, which moves."""

    def __init__(self, at: Connection) -> None:
        self.on_lost: list[object] = []
        self.present = at

    def at(self, _key: str) -> Connection:
        return self.present


async def test_a_waiter_for_a_moving_log_is_notified_with_any_timeout() -> None:
    """The new shard has its own replicas, and the log is recovered there."""
    async with running_valkey() as valkey:
        before, after = Connection(valkey.url, standing=True), Connection(valkey.url, standing=True)
        await before.open()
        shards = Moving(before)
        copies = RedisReplicas(shards, 60_000)  # type: ignore[arg-type]
        told: dict[str, asyncio.Future[Exception | None]] = {}
        try:
            for name, wait_ms in (("patient", None), ("another", 60_000)):
                told[name] = asyncio.get_running_loop().create_future()
                copies.confirm("headrace:t:0", 2, wait_ms, told[name].set_result)
            assert str(await told["another"]) == FEW
            assert not told["patient"].done()
            shards.present = after
            error = await told["patient"]
            assert isinstance(error, StorageUnavailable)
            assert str(error) == "headrace:t:0 has moved to another shard"
        finally:
            await copies.close()
            await before.close()


async def test_a_way_is_another_one_once_its_connection_was_lost() -> None:
    async with running_valkey() as valkey:
        batches = Connection(valkey.url, standing=True)
        await batches.open()
        copies = RedisReplicas(batches, 60_000)
        try:
            before = copies.primary("headrace:t:0")
            assert copies.primary("headrace:t:0") == before
            restored = asyncio.Event()
            batches.on_restored.append(restored.set)
            batches.give_up("a test says so")
            await restored.wait()
            assert copies.primary("headrace:t:0") != before
        finally:
            await copies.close()
            await batches.close()
