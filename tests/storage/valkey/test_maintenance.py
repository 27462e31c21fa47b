import asyncio
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from headrace.storage.redis.clients import Primary
from headrace.storage.valkey import maintenance
from headrace.storage.valkey.maintenance import (
    DUE_PERIOD_S,
    LEAST_BYTES,
    PATIENT_LOOKS,
    PERIOD_S,
    QUIET_BYTES,
    AofRewriter,
    rewrite_aof_forever,
    rewrite_due,
)

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
    async with asyncio.timeout(60):
        while (await client.info("persistence"))["aof_rewrite_in_progress"]:
            await asyncio.sleep(0.01)
    for _ in range(32):
        await client.set("key", b"x" * (1 << 20))
    await client.delete("key")
    return int((await client.info("persistence"))["aof_current_size"])


async def test_a_file_that_is_due_is_rewritten_in_a_quiet_moment(client: "redis.asyncio.Redis") -> None:
    before = await _fill(client)
    assert not await AofRewriter(Primary(client)).look()
    watch = AofRewriter(Primary(client), least_bytes=before * 3 // 4)
    assert not await watch.look()
    await client.set("key", b"x" * (QUIET_BYTES + 1))
    await client.delete("key")
    assert not await watch.look()
    assert await watch.look()
    await _rewritten(client, before)
    assert not await watch.look()


async def test_where_it_is_never_quiet_a_file_is_rewritten_all_the_same(
    client: "redis.asyncio.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await _fill(client)
    monkeypatch.setattr(maintenance, "QUIET_BYTES", 0)
    watch = AofRewriter(Primary(client), least_bytes=before * 3 // 4)
    for _ in range(PATIENT_LOOKS):
        await client.set("key", b"x")
        assert not await watch.look()
    await client.set("key", b"x")
    assert await watch.look()
    await _rewritten(client, before)


async def test_a_file_that_has_become_twice_as_large_waits_no_longer(client: "redis.asyncio.Redis") -> None:
    before = await _fill(client)
    watch = AofRewriter(Primary(client), least_bytes=before * 3 // 4)
    assert not await watch.look()
    size = before
    while size < 2 * before:
        size = await _fill(client)
    assert await watch.look()
    await _rewritten(client, size)


async def test_the_watch_looks_more_often_at_a_file_that_is_due_and_goes_on_when_valkey_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: Iterator[int | Exception] = iter([redis.ConnectionError("away"), 1, 2, 0])
    pauses: list[float] = []
    enough = asyncio.Event()

    async def look(watch: AofRewriter) -> bool:
        each = next(found)
        if isinstance(each, Exception):
            raise each
        watch.looks = each
        return False

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 4:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(AofRewriter, "look", look)
    async with redis.asyncio.Redis() as nobody:
        watch = asyncio.create_task(rewrite_aof_forever(nobody, pause))
        async with asyncio.timeout(60):
            await enough.wait()
        watch.cancel()
        await asyncio.wait([watch])
    assert pauses == [PERIOD_S, PERIOD_S, DUE_PERIOD_S, DUE_PERIOD_S, PERIOD_S]
