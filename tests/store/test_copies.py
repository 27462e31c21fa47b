"""The barrier of `min.insync.replicas` over a primary without replicas; with replicas: tests/cluster/test_copies.py."""

import asyncio

from tests.harness.valkey import running_valkey

from headrace.store.connection import Connection
from headrace.store.copies import Copies


async def test_who_has_no_time_left_does_not_cut_off_the_round_of_the_others() -> None:
    """Whoever asks for a millisecond has waited for longer than that when a round that is under way is over."""
    async with running_valkey() as valkey:
        batches = Connection(valkey.url, standing=True)
        await batches.open()
        copies = Copies(batches, 60_000)
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        try:
            copies.confirm("headrace:t:0", 2, -60_000, told.set_result)
            assert str(await told) == "min.insync.replicas=2: 1 have what Redis has acknowledged"
        finally:
            await copies.close()
            await batches.close()


async def test_a_way_is_another_one_once_its_connection_was_lost() -> None:
    async with running_valkey() as valkey:
        batches = Connection(valkey.url, standing=True)
        await batches.open()
        copies = Copies(batches, 60_000)
        try:
            before = copies.way("headrace:t:0")
            assert copies.way("headrace:t:0") == before
            restored = asyncio.Event()
            batches.on_restored.append(restored.set)
            batches.give_up("a test says so")
            await restored.wait()
            assert copies.way("headrace:t:0") != before
        finally:
            await copies.close()
            await batches.close()
