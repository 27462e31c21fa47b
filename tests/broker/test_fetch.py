"""Fetch: limits, waiting, waking. No time passes but by hand."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from tests.broker.batches import batch
from tests.harness.memory import MemoryStorage

from headrace.broker.fetch import DelayedFetch, Found, PartitionFetch, Wakeups
from headrace.broker.partition.cache import Buffer, CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.source import UNCOMMITTED, AlwaysStable, Isolation, Watchers
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.broker.runtime.scheduler import SLICE_S
from headrace.testing.clock import ManualClock
from headrace.topics.errors import OffsetOutOfRange, UnknownTopic


class Reader:
    """Starts fetches and keeps what they found."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.wakeups = Wakeups()
        self.budget = ReadBudget()
        self.answers: list[list[Found]] = []

    def fetch(
        self,
        *asks: PartitionFetch,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        first: int = 0,
    ) -> DelayedFetch:
        fetch = DelayedFetch(
            asks,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            deadline_ms=self.clock.ticks_ms() + max_wait_ms,
            first=first,
            clock=self.clock,
            wakeups=self.wakeups,
            budget=self.budget,
            done=self.answers.append,
        )
        fetch.start()
        return fetch

    @property
    def sizes(self) -> list[int]:
        return [found.size for found in self.answers[-1]]


def fill(partition: LeaderPartition, storage: MemoryStorage, batches: int = 1) -> int:
    """Append single-record batches; the size of each."""
    for _ in range(batches):
        partition.append(batch(), lambda _: None)
    storage.logs.answer()
    return len(batch().batch)


async def another(storage: MemoryStorage, budget: CacheBudget) -> LeaderPartition:
    made = LeaderPartition("t", 1, "headrace:t:1", storage.logs, budget, ManualClock(), SnapshotSchedule())
    await made.open(create=True)
    return made


async def turn() -> None:
    """One turn of the event loop."""
    await asyncio.sleep(0)


async def test_records_that_are_there_are_answered_at_once(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    size = fill(partition, storage, 3)
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 1, 1 << 20))

    assert reader.sizes == [2 * size]
    assert (reader.answers[0][0].log_end, reader.answers[0][0].log_start) == (3, 0)
    assert clock.pending == 0


async def test_a_fetch_at_the_log_end_wakes_on_append(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20))
    assert not reader.answers
    assert clock.pending == 1

    size = fill(partition, storage, 2)
    await turn()

    assert reader.sizes == [2 * size]
    assert clock.pending == 0


class Unstable(LeaderPartition):
    """A log whose last record is of a transaction that is under way."""

    def visible_end(self, isolation: Isolation) -> int:
        return self.log_end - 1 if isolation is Isolation.READ_COMMITTED else self.log_end


async def test_a_reader_waits_where_its_isolation_ends(storage: MemoryStorage, clock: ManualClock) -> None:
    log = Unstable("t", 1, "headrace:t:1", storage.logs, CacheBudget(1 << 20), clock, SnapshotSchedule())
    await log.open(create=True)
    fill(log, storage, 2)
    committed, uncommitted = Reader(clock), Reader(clock)
    committed.fetch(PartitionFetch(log, 1, 1 << 20, isolation=Isolation.READ_COMMITTED))
    uncommitted.fetch(PartitionFetch(log, 1, 1 << 20))

    assert not committed.answers
    [[found]] = uncommitted.answers
    assert (found.size > 0, found.log_end, found.stable_end) == (True, 2, 1)

    clock.advance(500)
    [[found]] = committed.answers
    assert (found.size, found.log_end, found.stable_end) == (0, 2, 1)


async def test_who_waits_can_be_answered_before_the_end_of_the_turn_and_only_once(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20))
    size = fill(partition, storage, 3)
    assert not reader.answers

    reader.wakeups.run()
    assert reader.sizes == [3 * size]

    reader.wakeups.run()
    await turn()
    assert len(reader.answers) == 1


async def test_a_fetch_that_cannot_be_answered_does_not_hold_up_the_others(clock: ManualClock) -> None:
    reader = Reader(clock)
    answered: list[int] = []

    def fail() -> None:
        raise RuntimeError("its client's trouble")

    reader.wakeups.add(fail)
    reader.wakeups.add(lambda: answered.append(1))
    reader.wakeups.run()
    await turn()

    assert answered == [1]


async def test_many_that_are_woken_together_leave_time_for_others(clock: ManualClock) -> None:
    wakeups = Wakeups()
    woken: list[int] = []
    turns = 0

    def work(number: int) -> None:
        until = perf_counter() + SLICE_S
        while perf_counter() < until:
            pass
        woken.append(number)

    for number in range(5):
        wakeups.add(partial(work, number))
    wakeups.run()
    assert woken == [0]
    wakeups.run()
    assert woken == [0], "those who send in the same turn do not go on with them either"
    while len(woken) < 5:
        turns += 1
        await asyncio.sleep(0)
    assert woken == list(range(5))
    assert turns >= 4


async def test_nothing_new_is_answered_empty_at_the_deadline(partition: LeaderPartition, clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20))
    clock.advance(499)
    assert not reader.answers
    clock.advance(1)

    assert reader.sizes == [0]
    assert reader.answers[0][0].error is None


async def test_a_fetch_waits_for_min_bytes_over_all_partitions(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    other = await another(storage, budget)
    size = fill(partition, storage)
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20), PartitionFetch(other, 0, 1 << 20), min_bytes=3 * size)
    fill(other, storage)
    await turn()
    assert not reader.answers

    fill(partition, storage)
    await turn()

    assert reader.sizes == [2 * size, size]


async def test_a_fetch_that_takes_all_it_has_room_for_does_not_wait(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    """Kafka counts the part of a batch that would fit; here batches come whole."""
    other = await another(storage, budget)
    size = fill(partition, storage, 5)
    fill(other, storage)
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 3 * size + 1), min_bytes=3 * size + 1)
    assert reader.sizes == [3 * size]
    reader.fetch(
        PartitionFetch(partition, 0, 5 * size), PartitionFetch(other, 0, size), min_bytes=6 * size, max_bytes=5 * size
    )
    assert reader.sizes == [5 * size, 0]
    reader.fetch(PartitionFetch(partition, 2, 3 * size + 1), min_bytes=3 * size + 1)
    assert len(reader.answers) == 2


async def test_min_bytes_zero_and_max_wait_zero_answer_at_once(partition: LeaderPartition, clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20), min_bytes=0)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20), max_wait_ms=0)

    assert [found[0].size for found in reader.answers] == [0, 0]


async def test_an_error_in_one_partition_is_answered_at_once_with_the_others(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    other = await another(storage, budget)
    size = fill(partition, storage)
    reader = Reader(clock)
    reader.fetch(
        PartitionFetch(partition, 0, 1 << 20),
        PartitionFetch(other, 7, 1 << 20),
        PartitionFetch(UnknownTopic("no such topic"), 0, 1 << 20),
        min_bytes=1 << 20,
    )
    answer = reader.answers[0]

    assert answer[0].size == size
    assert isinstance(answer[1].error, OffsetOutOfRange)
    assert answer[1].log_end == -1
    assert isinstance(answer[2].error, UnknownTopic)


async def test_a_batch_larger_than_every_limit_is_still_returned_whole(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    other = await another(storage, budget)
    size = fill(partition, storage, 2)
    fill(other, storage)
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1), PartitionFetch(other, 0, 1), max_bytes=1)

    assert reader.sizes == [size, 0]


async def test_under_a_byte_limit_another_partition_comes_first_each_time(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    other = await another(storage, budget)
    size = fill(partition, storage)
    fill(other, storage)
    reader = Reader(clock)
    for first in (0, 1):
        reader.fetch(
            PartitionFetch(partition, 0, 1 << 20), PartitionFetch(other, 0, 1 << 20), max_bytes=size, first=first
        )

    assert [[found.size for found in answer] for answer in reader.answers] == [[size, 0], [0, size]]


async def test_batches_that_left_memory_are_read_from_redis(
    storage: MemoryStorage, clock: ManualClock, budget: CacheBudget
) -> None:
    cold = LeaderPartition("t", 0, "headrace:t:0", storage.logs, CacheBudget(0), clock, SnapshotSchedule())
    await cold.open(create=True)
    size = fill(cold, storage, 3)
    warm = await another(storage, budget)
    fill(warm, storage)
    reader = Reader(clock)
    reader.fetch(PartitionFetch(cold, 1, 1 << 20), PartitionFetch(warm, 0, 1 << 20))
    while not reader.answers:
        await turn()

    assert reader.sizes == [2 * size, size]


async def test_what_was_read_ahead_does_not_starve_what_is_read_only_now(
    partition: LeaderPartition,
    storage: MemoryStorage,
    budget: CacheBudget,
    clock: ManualClock,
    drop_cached: Callable[[], None],
) -> None:
    """Else a partition of which the next answer is always here would go first for as long as it lags."""
    partitions = [partition, await another(storage, budget)]
    sizes = [fill(each, storage, 40) for each in partitions]
    drop_cached()
    reader = Reader(clock)
    offsets = [0, 0]
    for first in range(10):
        asks = [PartitionFetch(each, offset, 2 * sizes[0]) for each, offset in zip(partitions, offsets, strict=True)]
        reader.fetch(*asks, max_bytes=2 * sizes[0], first=first)
        while len(reader.answers) <= first:
            await turn()
        for _ in range(10):
            await turn()  # what is read ahead comes
        offsets = [offset + size // sizes[0] for offset, size in zip(offsets, reader.sizes, strict=True)]
        reader.budget.release(sum(reader.sizes))
    assert offsets == [10, 10]


class Late(AlwaysStable):
    """A partition that hears of its first record before the answer of a read that has not found it is looked at."""

    log_start = 0

    def __init__(self) -> None:
        self.log_end = 0
        self.watchers = Watchers()
        self.watch, self.unwatch = self.watchers.watch, self.watchers.discard

    def check_readable(self, offset: int) -> None:
        pass

    has_gaps = False

    def visible_end(self, isolation: Isolation) -> int:
        return self.log_end

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        return False

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        raise AssertionError

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        if self.log_end:
            return [b"record"], 6
        self.log_end = 1
        self.watchers.notify(6)
        return [], 0


async def test_appends_during_a_response_of_redis_are_not_waited_for(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(Late(), 0, 1 << 20))
    for _ in range(10):
        await turn()

    assert reader.sizes == [6]
    assert clock.pending == 0


class Sized(Late):
    """Has one record, whose size is unknown before the read; reports an upper bound."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.log_end = 1
        self.allowed: list[int] = []

    has_gaps = False

    def visible_end(self, isolation: Isolation) -> int:
        return self.log_end

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        return offset > 0

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        assert first is not None
        self.allowed.append(first)
        if self.size > first:
            raise NeedsRoom(self.size)
        return [bytes(self.size)], self.size


async def turns() -> None:
    for _ in range(20):
        await turn()


async def test_a_record_of_unknown_size_is_read_once_there_is_room_for_it(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.budget = ReadBudget(40_000)
    reader.budget.take(25_000)
    large = Sized(20_000)
    reader.fetch(PartitionFetch(large, 0, 1_000, 1_000), max_bytes=2_000)
    await turns()
    assert (reader.answers, len(large.allowed)) == ([], 1)
    assert reader.budget.used == 25_000, "who waits has nothing"
    reader.budget.release(25_000)
    await turns()
    assert reader.sizes == [20_000], "the first is answered however large it is"
    assert large.allowed[-1] >= 20_000
    assert reader.budget.used == 20_000


async def test_many_who_want_more_than_there_is_have_it_in_turns(clock: ManualClock) -> None:
    reader = Reader(clock)
    reader.budget = ReadBudget(2_560_000)
    large = Sized(600_000)
    for _ in range(8):
        reader.fetch(PartitionFetch(large, 0, 10_000, 10_000), max_bytes=500_000)
    answered = 0
    for _ in range(100):
        await turns()
        assert reader.budget.used <= reader.budget.limit
        if len(reader.answers) > answered:
            answered += 1
            reader.budget.release(600_000)
    assert answered == 8
    assert reader.budget.used == 0
    assert len(large.allowed) <= 16, "once to know how large it is"


async def test_a_record_may_have_all_that_was_taken_for_a_fetch(clock: ManualClock) -> None:
    reader, large = Reader(clock), Sized(200_000)
    reader.fetch(PartitionFetch(large, 0, 1_000, 1_000), max_bytes=300_000)
    await turns()
    assert (reader.sizes, large.allowed) == ([200_000], [301_000])


async def test_a_fetch_that_ends_wants_no_room(clock: ManualClock) -> None:
    reader, large = Reader(clock), Sized(20_000)
    reader.budget = ReadBudget(40_000)
    reader.budget.take(25_000)
    fetch = reader.fetch(PartitionFetch(large, 0, 1_000, 1_000), max_bytes=2_000)
    await turns()
    fetch.cancel()
    reader.budget.release(25_000)
    await turns()
    assert (reader.answers, len(large.allowed), reader.budget.used) == ([], 1, 0)


async def test_a_large_record_comes_where_its_fetch_begins_and_does_not_hold_up_the_others(clock: ManualClock) -> None:
    reader = Reader(clock)
    for first, sizes in ((0, [20_000, 0]), (1, [0, 500])):
        asks = [PartitionFetch(Sized(size), 0, 1_000, 1_000) for size in (20_000, 500)]
        reader.fetch(*asks, max_bytes=2_000, first=first)
        await turns()
        assert reader.sizes == sizes
    assert reader.budget.used == 20_500


async def test_a_cancelled_fetch_leaves_no_timer_and_never_answers(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    reader = Reader(clock)
    fetch = reader.fetch(PartitionFetch(partition, 0, 1 << 20))
    fetch.cancel()
    fill(partition, storage)
    await turn()

    assert not reader.answers
    assert clock.pending == 0


async def test_a_waiting_fetch_learns_that_its_topic_was_deleted(
    partition: LeaderPartition, clock: ManualClock
) -> None:
    reader = Reader(clock)
    reader.fetch(PartitionFetch(partition, 0, 1 << 20), min_bytes=1 << 20)
    partition.close()
    await turn()

    assert isinstance(reader.answers[0][0].error, UnknownTopic)
