import asyncio
from collections.abc import Sequence

import pytest
from tests.harness.aof import batch, whole

from headrace.broker.partition.cache import fitting
from headrace.broker.partition.reader import ReadAhead, fit_to
from headrace.broker.runtime.budget import ReadBudget
from headrace.topics.model import StoredBatch

LIMIT = 1 << 20


def joined(*bases: int) -> StoredBatch:
    """Batches of two records each, as one."""
    data = b"".join(bytes(batch(base, 2)) for base in bases)
    return StoredBatch(bases[0], bases[-1] + 2, memoryview(bytearray(data)), len(bases))


def alone(*bases: int) -> list[StoredBatch]:
    return [StoredBatch(base, base + 2, bytes(batch(base, 2))) for base in bases]


async def test_an_answer_leaves_before_what_is_behind_it_is_read() -> None:
    """A read from the page cache blocks the loop, and the client would have to wait."""
    happened: list[str] = []

    async def read(offset: int, limit: int, *, join: bool) -> list[StoredBatch]:
        happened.append("read ahead")
        return [StoredBatch(1, 2, b"next")]

    ahead = ReadAhead(ReadBudget())

    async def answer_part() -> None:
        ahead.keep(read, StoredBatch(0, 1, b"last"), [], LIMIT, join=False)

    # As a fetch of several partitions does it; what it writes leaves at the end of the turn.
    await asyncio.gather(answer_part())
    await asyncio.sleep(0)
    happened.append("answer")
    assert await ahead.take(1, LIMIT, join=False) == [StoredBatch(1, 2, b"next")]
    assert happened == ["answer", "read ahead"]


class Log:
    """Reads ahead in a log, by the requested ranges."""

    def __init__(self, found: Sequence[StoredBatch] | Exception) -> None:
        self.found = found
        self.asked: list[tuple[int, int, bool]] = []
        self.ahead = ReadAhead(ReadBudget())

    async def read(self, offset: int, limit: int, *, join: bool) -> list[StoredBatch]:
        self.asked.append((offset, limit, join))
        if isinstance(self.found, Exception):
            raise self.found
        return [*self.found]

    async def keep(self, left: list[StoredBatch], *, join: bool = True) -> None:
        self.ahead.keep(self.read, alone(0)[0], left, LIMIT, join=join)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_available_records_are_returned_without_waiting() -> None:
    log = Log([joined(2, 4), *alone(6)])
    assert log.ahead.ready(2) is None
    log.ahead.keep(log.read, alone(0)[0], [], LIMIT, join=True)
    assert log.ahead.ready(2) is None
    await log.keep([])
    assert whole(log.ahead.ready(2)) == whole([joined(2, 4), *alone(6)])
    assert [log.ahead.ready(offset) for offset in (0, 1, 3, 8)] == [None] * 4
    log.ahead.forget()
    assert log.ahead.ready(2) is None


@pytest.mark.parametrize("found", [[], OSError("gone")])
async def test_nothing_is_ready_where_a_read_found_nothing(found: Sequence[StoredBatch] | Exception) -> None:
    log = Log(found)
    await log.keep([])
    assert log.ahead.ready(2) is None


async def test_no_more_is_read_ahead_than_what_was_left_over_lacks() -> None:
    log = Log(alone(6))
    await log.keep(alone(2, 4))
    size = sum(len(each.batch) for each in alone(2, 4))
    assert log.asked == [(6, LIMIT - size, True)]
    assert whole(log.ahead.ready(2)) == whole(alone(2, 4, 6))


async def test_who_wants_each_by_itself_gets_that() -> None:
    log = Log([joined(2, 4, 6), *alone(8)])
    await log.keep([])
    found = await log.ahead.take(2, LIMIT, join=False)
    assert whole(found) == whole(alone(2, 4, 6, 8))


@pytest.mark.parametrize("join", [False, True])
async def test_who_wants_less_gets_what_fits_by_itself_and_the_others_as_they_came(join: bool) -> None:
    """They may be thousands, and the client may want one after the other."""
    many = range(2, 10_000, 2)
    log = Log([joined(*many), *alone(10_000)])
    await log.keep([])
    found = await log.ahead.take(2, len(alone(2)[0].batch), join=join)
    assert whole(found) == whole([*alone(2, 4), joined(*many[2:]), *alone(10_000)])


@pytest.mark.parametrize("join", [False, True])
def test_what_is_taken_of_it_is_the_same_as_if_all_were_by_themselves(join: bool) -> None:
    kept = [joined(2, 4), *alone(6), joined(8, 10, 12), *alone(14)]
    every = alone(*range(2, 16, 2))
    for limit in range(sum(len(each.batch) for each in every)):
        assert fitting(fit_to(kept, limit, join=join), limit) == fitting(every, limit)


async def test_who_stopped_in_the_last_batch_gets_it_again() -> None:
    log = Log([joined(2, 4), *alone(6)])
    await log.keep([], join=False)
    assert whole(await log.ahead.take(1, LIMIT, join=True)) == whole([*alone(0), joined(2, 4), *alone(6)])


async def test_with_it_there_may_be_more_than_is_wanted() -> None:
    log = Log([joined(2, 4), *alone(6)])
    size = len(joined(2, 4).batch) + len(alone(6)[0].batch)
    await log.keep([], join=False)
    assert whole(await log.ahead.take(1, size, join=True)) == whole(alone(0, 2, 4, 6))


def test_a_large_batch_is_not_taken_apart() -> None:
    assert fit_to(alone(2), 1, join=True) == alone(2)
