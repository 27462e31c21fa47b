"""The budget for answers under way: shares, waiting, read-ahead."""

import asyncio

import pytest

from headrace.broker.runtime.budget import ReadBudget

MIB = 1 << 20


async def test_shares_get_smaller_and_then_wait_in_order() -> None:
    budget = ReadBudget(16 * MIB)
    assert budget.grant(100 * MIB) == 8 * MIB
    assert budget.grant(100 * MIB) == 4 * MIB
    first = asyncio.ensure_future(budget.acquire(MIB, 5 * MIB))
    second = asyncio.ensure_future(budget.acquire(MIB, MIB))
    await asyncio.sleep(0)
    assert budget.short
    assert budget.grant(1) == 0, "others wait"
    budget.release(8 * MIB)
    assert [await first, await second] == [5 * MIB, MIB]
    assert budget.used == 10 * MIB


async def test_who_is_alone_gets_what_it_needs() -> None:
    budget = ReadBudget(MIB)
    assert budget.grant(MIB, 5 * MIB) == 5 * MIB
    assert budget.grant(MIB) == 0


async def test_a_request_for_nothing_does_not_wait() -> None:
    budget = ReadBudget(MIB)
    assert await asyncio.wait_for(budget.acquire(0, 0), 60) == 0
    budget.grant(MIB)
    assert await asyncio.wait_for(budget.acquire(0, 0), 60) == 0
    assert not budget.short


async def test_who_waits_no_longer_takes_nothing() -> None:
    budget = ReadBudget(MIB)
    held = budget.grant(MIB, MIB)
    waiting = asyncio.ensure_future(budget.acquire(MIB, MIB))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    budget.release(held)
    assert budget.used == 0
    assert not budget.short


@pytest.mark.parametrize("leaving", [[0], [0, 1], [1, 0]])
async def test_a_canceled_waiter_does_not_block_smaller_requests(leaving: list[int]) -> None:
    """Such as clients that have left: what is held may be held for long, by one that takes its answer slowly."""
    budget = ReadBudget(16 * MIB)
    budget.grant(10 * MIB, 10 * MIB)
    large = [asyncio.ensure_future(budget.acquire(MIB, 8 * MIB)) for _ in leaving]
    small = asyncio.ensure_future(budget.acquire(MIB, MIB))
    await asyncio.sleep(0)
    assert budget.short
    for place in leaving:
        large[place].cancel()
    assert await asyncio.wait_for(small, 10) == MIB
    assert not budget.short
    assert budget.grant(1) > 0, "nobody waits"


async def test_read_ahead_goes_when_an_answer_needs_its_room() -> None:
    budget = ReadBudget(16 * MIB)
    dropped: list[str] = []
    old = budget.read_ahead(6 * MIB, lambda: dropped.append("old"))
    new = budget.read_ahead(6 * MIB, lambda: dropped.append("new"))
    assert old is not None
    assert new is not None
    assert budget.read_ahead(6 * MIB, lambda: None) is None, "a quarter stays free"
    old.came(6 * MIB)
    new.came(6 * MIB)
    assert budget.grant(8 * MIB, 8 * MIB) == 8 * MIB
    assert dropped == ["old"]
    assert budget.used == 14 * MIB
    new.drop()
    assert budget.used == 8 * MIB


async def test_what_is_still_on_its_way_counts_until_it_is_here() -> None:
    budget = ReadBudget(16 * MIB)
    ahead = budget.read_ahead(6 * MIB, lambda: None)
    assert ahead is not None
    ahead.drop()
    assert budget.used == 6 * MIB
    ahead.came(2 * MIB)
    assert budget.used == 0
