"""Readers of committed records whose aborted transactions memory no longer has, and readers that filter them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.transactional import Log, sent
from tests.harness import memory

from headrace.broker.fetch import DelayedFetch, Found, PartitionFetch, Wakeups
from headrace.broker.partition.cache import Buffer, next_offset
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.read import read
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED, Isolation, Source
from headrace.broker.runtime.budget import ReadBudget
from headrace.records.batch import read_header
from headrace.testing.clock import ManualClock
from headrace.topics.errors import NotLeader

MOST = 10


async def aborted_ones(log: Log, count: int) -> None:
    """Transactions of one record, each aborted and saved."""
    log.storage.logs.aborted_total.most = MOST
    for number in range(count):
        log.stored(sent(number))
        log.finish(commit=False)
        await log.partition.save_producers()


async def fetched(
    log: Log, clock: ManualClock, offset: int, isolation: Isolation = COMMITTED, most: int = 1 << 20
) -> Found:
    answers: list[list[Found]] = []
    DelayedFetch(
        [PartitionFetch(log.partition, offset, most, isolation=isolation)],
        min_bytes=1,
        max_bytes=most,
        deadline_ms=clock.ticks_ms(),
        first=0,
        clock=clock,
        wakeups=Wakeups(),
        budget=ReadBudget(),
        done=answers.append,
    ).start()
    while not answers:
        await asyncio.sleep(0)
    return answers[0][0]


@pytest.mark.parametrize("offset", [0, 1, 7, 30, 59])
@pytest.mark.parametrize("cached", [True, False])
async def test_the_list_is_complete_where_memory_has_forgotten_some(
    log: Log, clock: ManualClock, drop_cached: Callable[[], None], offset: int, cached: bool
) -> None:
    await aborted_ones(log, 30)
    assert log.storage.logs.aborted_total.count <= MOST
    assert 0 < log.partition.aborted_from < 60
    if not cached:
        drop_cached()
    found = await fetched(log, clock, offset)
    assert found.error is None
    assert next_offset(found.chunks) == 60
    assert [each.first_offset for each in found.aborted] == [first for first in range(0, 60, 2) if first + 1 >= offset]
    assert (await fetched(log, clock, offset, UNCOMMITTED)).aborted == []


async def test_nothing_is_returned_without_its_list(
    log: Log, clock: ManualClock, drop_cached: Callable[[], None]
) -> None:
    """Memory forgets some while storage is read. The client fetches again."""
    await aborted_ones(log, 8)
    drop_cached()
    asking = asyncio.ensure_future(fetched(log, clock, 0))
    while not log.storage.logs.reads:
        await asyncio.sleep(0)
    log.storage.logs.aborted_total.most = 3
    assert log.partition.transactions is not None
    log.partition.transactions.aborted.shrink()
    assert log.partition.aborted_from > 0
    lost = await asking
    assert (lost.error, lost.chunks, lost.size, lost.log_end) == (None, [], 0, 16)
    assert [each.first_offset for each in (await fetched(log, clock, 0)).aborted] == list(range(0, 16, 2))


def just_after(log: Log, monkeypatch: pytest.MonkeyPatch, call: str, happens: Callable[[], None]) -> None:
    """Let something happen just after storage has answered a call."""
    original = getattr(log.storage.logs, call)

    async def answered(*arguments: Any, **options: Any) -> Any:
        found = await original(*arguments, **options)
        happens()
        return found

    monkeypatch.setattr(log.storage.logs, call, answered)


def trim(log: Log, log_start: int) -> None:
    """What the leader does after retention, and what the next snapshot does in Redis."""
    log.partition.local_start = log_start
    assert log.partition.transactions is not None
    log.partition.transactions.aborted.trim(log_start)
    stored = log.storage.logs.logs[log.partition.stream].aborted
    stored[:] = [each for each in stored if each.marker_offset >= log_start]


def begin_recovery(log: Log) -> None:
    log.partition.transactions = None


@pytest.mark.parametrize("happens", [lambda log: trim(log, 6), begin_recovery], ids=["retention", "recovery"])
@pytest.mark.parametrize("call", ["read", "aborted"])
async def test_aborted_records_are_not_shown_if_their_list_goes_during_a_read(
    log: Log,
    clock: ManualClock,
    drop_cached: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    happens: Callable[[Log], None],
    call: str,
) -> None:
    await aborted_ones(log, 30)
    drop_cached()
    transactions = log.partition.transactions
    just_after(log, monkeypatch, call, lambda: happens(log))
    found = await fetched(log, clock, 0)
    assert (found.error, found.chunks, found.size) == (None, [], 0)
    log.partition.local_start, log.partition.transactions = 0, transactions
    sink = Taken()
    assert await read(log.partition, 0, sink, isolation=COMMITTED) == 0
    assert sink.offsets == []


async def test_a_reader_passes_over_a_bounded_number_of_hidden_bytes(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    await aborted_ones(log, 30)
    log.stored(sent(0, producer=8, transaction=None))
    monkeypatch.setattr("headrace.broker.partition.read.MOST_HIDDEN", 500)
    sink, offset, reads = Taken(), 0, 0
    while offset < 61:
        following = await read(log.partition, offset, sink, isolation=COMMITTED)
        assert following > offset
        offset, reads = following, reads + 1
    assert sink.offsets == [60]
    assert reads > 5


async def test_an_index_that_is_being_rebuilt_is_an_error(log: Log, clock: ManualClock) -> None:
    log.stored(sent(0))
    log.partition.transactions = None
    found = await fetched(log, clock, 0)
    assert isinstance(found.error, NotLeader)
    assert (await fetched(log, clock, 0, UNCOMMITTED)).size > 0


class Taken:
    """A sink without an end."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def room(self) -> int:
        return 200

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        self.offsets += [read_header(memoryview(each)[:61]).base_offset for each in batches]
        return next_offset(batches)


@pytest.mark.parametrize("cached", [True, False])
async def test_readers_that_filter_get_committed_batches_only(
    log: Log, drop_cached: Callable[[], None], cached: bool
) -> None:
    await aborted_ones(log, 12)
    log.stored(sent(0, producer=8, transaction=None), sent(12), sent(0, producer=9))
    log.finish()
    log.finish(producer=9, commit=False)
    log.stored(sent(13), sent(1, producer=8, transaction=None))
    if not cached:
        drop_cached()
    sink = Taken()
    assert await read(log.partition, 0, sink, isolation=COMMITTED) == 29
    assert sink.offsets == [24, 25]
    sink = Taken()
    assert await read(log.partition, 0, sink) == 31
    assert sink.offsets == list(range(31))


OTHERS = 1_500


@pytest.mark.parametrize("older", [False, True], ids=["memory", "storage"])
async def test_a_list_of_many_has_only_producers_of_what_is_returned(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """Transactions of many producers begin before a batch and are aborted after it."""
    others = range(100, 100 + OTHERS)
    for producer in (*others, 50):
        log.stored(sent(0, producer=producer))
    for producer in others:
        log.end(commit=False, producer=producer)
    log.storage.logs.answer()
    await log.partition.save_producers()
    if older:
        log.storage.logs.aborted_total.most = 1
        monkeypatch.setattr(memory, "MOST_UNRELATED", 10)
    log.ended.clear()
    log.finish(commit=False, producer=50)
    assert (log.partition.aborted_from > 0) == older
    found = await fetched(log, clock, OTHERS)
    assert len(found.aborted) == OTHERS + 1, "the markers of all are returned, too"
    size = len(found.chunks[0])
    found = await fetched(log, clock, OTHERS, most=size)
    assert len(found.chunks) == 1
    assert [(each.producer_id, each.first_offset) for each in found.aborted] == [(50, OTHERS)]


async def test_appends_cost_nothing_for_readers_that_wait_behind_an_open_transaction(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, LeaderPartition.at_end

    def counted(self: LeaderPartition, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        nonlocal looks
        looks += 1
        return look(self, offset, isolation)

    log.stored(sent(0))
    answers: list[list[Found]] = []
    for _ in range(200):
        DelayedFetch(
            [PartitionFetch(log.partition, 0, 1 << 20, isolation=COMMITTED)],
            min_bytes=1,
            max_bytes=1 << 20,
            deadline_ms=clock.ticks_ms() + 60_000,
            first=0,
            clock=clock,
            wakeups=Wakeups(),
            budget=ReadBudget(),
            done=answers.append,
        ).start()
    monkeypatch.setattr(LeaderPartition, "at_end", counted)
    for number in range(500):
        log.stored(sent(number, producer=8, transaction=None))
        await asyncio.sleep(0)
    assert (looks, answers) == (0, [])
    log.finish(commit=True)
    while len(answers) < 200:
        await asyncio.sleep(0)
    assert {next_offset(found.chunks) for [found] in answers} == {log.partition.log_end}
