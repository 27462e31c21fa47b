import asyncio

import pytest
from tests.harness.waiting import until

from headrace.aio.single_flight import SingleFlight


class Slow:
    """Answers on request: the number of the question."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.answer = asyncio.Event()

    async def __call__(self, what: str) -> int:
        self.begun.append(what)
        number = self.begun.count(what)
        await self.answer.wait()
        if what == "wrong":
            raise ValueError(what)
        return number


async def test_who_asks_while_a_question_is_under_way_has_the_answer_of_the_next_and_shares_it() -> None:
    slow = Slow()
    shared = SingleFlight(slow)
    first = asyncio.create_task(shared.get("x"))
    await until(lambda: slow.begun == ["x"])
    others = [asyncio.create_task(shared.get("x")) for _ in range(5)]
    elsewhere = asyncio.create_task(shared.get("y"))
    await until(lambda: slow.begun == ["x", "y"])
    slow.answer.set()
    assert await first == 1
    assert await asyncio.gather(*others) == [2] * 5
    assert await elsewhere == 1
    assert await shared.get("x") == 3, "an answer is no answer to what is asked later"


async def test_a_canceled_waiter_does_not_affect_the_others() -> None:
    slow = Slow()
    shared = SingleFlight(slow)
    leaves, stays = asyncio.create_task(shared.get("x")), asyncio.create_task(shared.get("x"))
    await until(lambda: slow.begun == ["x"])
    leaves.cancel()
    slow.answer.set()
    assert await stays == 1


async def test_all_waiters_get_an_error_and_the_next_question_is_asked() -> None:
    slow = Slow()
    shared = SingleFlight(slow)
    asked = [asyncio.create_task(shared.get("wrong")) for _ in range(2)]
    await until(lambda: slow.begun == ["wrong"])
    asked.append(asyncio.create_task(shared.get("wrong")))
    slow.answer.set()
    for task in asked:
        with pytest.raises(ValueError, match="wrong"):
            await task
    assert slow.begun == ["wrong"] * 2


async def test_who_joins_has_the_answer_of_the_question_under_way() -> None:
    slow = Slow()
    shared = SingleFlight(slow, joins=True)
    first = asyncio.create_task(shared.get("x"))
    await until(lambda: slow.begun == ["x"])
    later = asyncio.create_task(shared.get("x"))
    slow.answer.set()
    assert [await first, await later] == [1, 1]
    assert await shared.get("x") == 2
    assert shared.tasks() == []
