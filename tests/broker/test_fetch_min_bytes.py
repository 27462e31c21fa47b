"""How often a fetch asks storage for entries of unknown size, and when it has enough."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.broker.fetch import DelayedFetch, Found, PartitionFetch, Wakeups
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import UNCOMMITTED, UNKNOWN_SIZE, AlwaysStable, Isolation, Watchers
from headrace.broker.runtime.budget import ReadBudget
from headrace.records.build import build
from headrace.testing.clock import ManualClock

WAIT_MS = 1_600
SIZE = len(build([(None, b"value", 0, ())]))


class Stream(AlwaysStable):
    """A plain stream: nothing of it is in memory, and more may come while it is read."""

    log_start = 0

    def __init__(self) -> None:
        self.log_end = 0
        self.reads = 0
        self.meanwhile: Callable[[], None] | None = None
        self._watchers = Watchers()
        self.watch, self.unwatch = self._watchers.watch, self._watchers.discard

    def grow(self) -> None:
        """One entry more."""
        self.log_end += 1
        self._watchers.notify(UNKNOWN_SIZE)

    def check_readable(self, offset: int) -> None:
        """It may be read."""

    has_gaps = False

    def visible_end(self, isolation: Isolation) -> int:
        return self.log_end

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        return self.reads > 0 and offset >= self.log_end

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        raise AssertionError("nothing is cached")

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        self.reads += 1
        there = range(offset, min(self.log_end, offset + limit // SIZE))
        if self.meanwhile is not None:
            self.meanwhile()
        return [build([(None, b"value", 0, ())], base_offset=each) for each in there], len(there) * SIZE


@pytest.fixture
def stream() -> Stream:
    return Stream()


Asking = Callable[..., list[list[Found]]]


@pytest.fixture
def ask(stream: Stream, clock: ManualClock) -> Asking:
    def begin(least: int, most: int = 1 << 20) -> list[list[Found]]:
        answers: list[list[Found]] = []
        deadline_ms = clock.ticks_ms() + WAIT_MS
        DelayedFetch(
            [PartitionFetch(stream, 0, most)],
            min_bytes=least,
            max_bytes=1 << 20,
            deadline_ms=deadline_ms,
            first=0,
            clock=clock,
            wakeups=Wakeups(),
            budget=ReadBudget(),
            done=answers.append,
        ).start()
        return answers

    return begin


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_entry_that_comes_while_it_is_read_is_no_reason_to_answer(
    stream: Stream, ask: Asking, clock: ManualClock
) -> None:
    stream.grow()
    stream.meanwhile = stream.grow
    answers = ask(20 * SIZE)
    await turns()
    assert not answers
    stream.meanwhile = None
    for _ in range(20):
        stream.grow()
    clock.advance(WAIT_MS // 2)
    await turns()
    assert [each.size for each in answers[0]] == [22 * SIZE]


async def test_one_that_was_there_and_has_no_room_is(stream: Stream, ask: Asking) -> None:
    for _ in range(5):
        stream.grow()
    answers = ask(5 * SIZE, 3 * SIZE + 1)
    await turns()
    assert [each.size for each in answers[0]] == [3 * SIZE]


async def test_who_is_content_with_any_entry_has_the_first_at_once(stream: Stream, ask: Asking) -> None:
    answers = ask(1)
    await turns()
    stream.grow()
    await turns()
    assert [each.size for each in answers[0]] == [SIZE]


async def test_storage_is_asked_a_bounded_number_of_times(stream: Stream, ask: Asking, clock: ManualClock) -> None:
    """However many entries come one by one: each time all of them are read."""
    answers = ask(1_000 * SIZE)
    for _ in range(WAIT_MS):
        await turns()
        stream.grow()
        clock.advance(1)
    await turns()
    [answer] = answers[0]
    assert 1_000 <= answer.size / SIZE <= 1_200
    assert stream.reads <= 20
