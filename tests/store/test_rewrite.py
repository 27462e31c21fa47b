import asyncio

import pytest
import redis
import redis.asyncio

from headrace.store import rewrite
from headrace.store.rewrite import LEAST_BYTES, keep_rewriting, rewrite_due, rewrite_if_due

GIB = 1 << 30


@pytest.mark.parametrize(
    ("aof_bytes", "live_bytes", "due"),
    [
        (0, 0, False),
        (LEAST_BYTES, 0, False),
        (LEAST_BYTES + 1, 0, True),
        (4 * GIB, GIB, False),
        (4 * GIB + 1, GIB, True),
        (100 * GIB, 30 * GIB, False),
    ],
)
def test_a_file_is_rewritten_over_a_gib_and_four_times_the_live_data(
    aof_bytes: int, live_bytes: int, due: bool
) -> None:
    assert rewrite_due(aof_bytes, live_bytes) is due


async def _rewritten(client: "redis.asyncio.Redis", before: int) -> None:
    """Until the file is smaller than it was."""
    async with asyncio.timeout(60):
        while int((await client.info("persistence"))["aof_current_size"]) >= before:
            await asyncio.sleep(0.01)


async def _fill(client: "redis.asyncio.Redis") -> int:
    """Write megabytes of which little is left alive; the size of the file then."""
    for _ in range(32):
        await client.set("key", b"x" * (1 << 20))
    await client.delete("key")
    return int((await client.info("persistence"))["aof_current_size"])


async def test_a_file_that_is_due_is_rewritten(client: "redis.asyncio.Redis") -> None:
    before = await _fill(client)
    assert not await rewrite_if_due(client)
    assert await rewrite_if_due(client, least_bytes=before // 2)
    await _rewritten(client, before)
    assert not await rewrite_if_due(client, least_bytes=before // 2)


async def test_the_watch_goes_on_when_valkey_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    enough = asyncio.Event()

    async def look(_client: object) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise redis.ConnectionError("away")
        enough.set()
        return False

    monkeypatch.setattr(rewrite, "rewrite_if_due", look)
    async with redis.asyncio.Redis() as nobody:
        watch = asyncio.create_task(keep_rewriting(nobody, period_s=0.001))
        async with asyncio.timeout(60):
            await enough.wait()
        watch.cancel()
        await asyncio.wait([watch])
