"""How far behind Redis consumer groups are where Redis does not know it itself."""

import asyncio
from typing import Any

import pytest
from tests.harness.plain import KEY, STREAM

from headrace.storage.storage import RedisStorage

ENTRIES = 2_500


@pytest.fixture
def storage(storage: RedisStorage, raw: Any) -> RedisStorage:
    """Of so many entries, one per millisecond from 1 on."""
    fill(raw, ENTRIES, b"x")
    return storage


def fill(raw: Any, count: int, value: bytes) -> None:
    with raw.pipeline(transaction=False) as many:
        for number in range(1, count + 1):
            many.xadd(KEY, {"v": value}, id=f"{number}-0")
        many.execute()


def calls(raw: Any, command: str) -> int:
    return int(raw.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def lags(storage: RedisStorage) -> dict[str, int | None]:
    return {each.name: each.undelivered for each in await storage.native.group_lags(STREAM)}


async def test_groups_that_were_set_somewhere_are_counted_to_the_entry(storage: RedisStorage, raw: Any) -> None:
    places = [0, 1, 2, 999, 1_000, 1_001, 1_499, 1_500, 1_501, 2_499, 2_500]
    for place in places:
        raw.xgroup_create(KEY, f"at-{place}", f"{place}-0")
    raw.xgroup_create(KEY, "between", "1200-5")
    raw.xgroup_create(KEY, "beyond", "9000-0")
    raw.xdel(KEY, *(f"{number}-0" for number in range(1_300, 1_310)))

    def behind(place: int) -> int:
        return sum(1 for number in range(place + 1, ENTRIES + 1) if not 1_300 <= number < 1_310)

    wanted = {f"at-{place}": behind(place) for place in places}
    assert await lags(storage) == wanted | {"between": behind(1_200), "beyond": 0}


async def test_entries_too_far_back_are_not_counted(
    storage: RedisStorage, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.storage.native.lags.MOST_COUNTED", 1_000)
    for place in (400, 2_400):
        raw.xgroup_create(KEY, f"at-{place}", f"{place}-0")
    assert await lags(storage) == {"at-400": None, "at-2400": 100}


async def test_large_entries_are_looked_at_a_few_at_a_time_and_not_for_ever(
    storage: RedisStorage, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand at a time stopped Redis for as long as it takes to copy them, and took as much of its memory."""
    raw.delete(KEY)
    fill(raw, 64, bytes(64 << 10))
    raw.xgroup_create(KEY, "group", "2-0")
    before = calls(raw, "evalsha")
    assert await lags(storage) == {"group": 62}
    assert calls(raw, "evalsha") - before >= 7
    monkeypatch.setattr("headrace.storage.native.lags.MOST_BYTES", 1 << 20)
    before = calls(raw, "evalsha")
    assert await lags(storage) == {"group": None}
    assert calls(raw, "evalsha") - before <= 3


async def test_concurrent_queries_get_the_same_answer(storage: RedisStorage, raw: Any) -> None:
    raw.xgroup_create(KEY, "group", "100-0")
    before = calls(raw, "evalsha")
    found = await asyncio.gather(*(lags(storage) for _ in range(100)))
    assert found == [{"group": ENTRIES - 100}] * 100
    assert calls(raw, "evalsha") - before <= 2 * 3, "once, and once more for those who came meanwhile"
