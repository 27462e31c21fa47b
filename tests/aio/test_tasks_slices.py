import asyncio

import pytest

from headrace.aio.tasks import in_slices


async def test_items_are_asked_about_a_few_at_once_in_their_order() -> None:
    running, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return item * item

    parts = [part async for part in in_slices(range(7), ask, 3)]
    assert parts == [[(0, 0), (1, 1), (2, 4)], [(3, 9), (4, 16), (5, 25)], [(6, 36)]]
    assert most == 3


async def test_an_error_ends_it_before_the_next_slice() -> None:
    asked: list[int] = []

    async def ask(item: int) -> None:
        asked.append(item)
        if item == 1:
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        async for _ in in_slices([0, 1, 2, 3], ask, 2):
            pass
    assert asked == [0, 1]
