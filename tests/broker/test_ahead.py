import asyncio

from headrace.broker.ahead import Ahead
from headrace.broker.budget import ReadBudget
from headrace.topics.model import StoredBatch


async def test_an_answer_leaves_before_what_is_behind_it_is_read() -> None:
    """A read from the page cache takes the loop's time, and the client has nothing to do meanwhile."""
    happened: list[str] = []

    async def read(_offset: int, _limit: int) -> list[StoredBatch]:
        happened.append("read ahead")
        return [StoredBatch(1, 2, b"next")]

    ahead = Ahead(ReadBudget(), read)

    async def answer_part() -> None:
        ahead.keep(StoredBatch(0, 1, b"last"), [], 1 << 20)

    # As a fetch of several partitions does it; what it writes leaves at the end of the turn.
    await asyncio.gather(answer_part())
    await asyncio.sleep(0)
    happened.append("answer")
    assert await ahead.take(1) == [StoredBatch(1, 2, b"next")]
    assert happened == ["answer", "read ahead"]
