"""The cached tails against a plain model: nothing is served that was dropped, and the budget holds."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.partition.cache import (
    ENTRY_OVERHEAD,
    LEAST_BYTES,
    CacheBudget,
    Tail,
    default_bytes,
    producers_of,
)
from headrace.records.build import build


def batch(size: int) -> bytearray:
    return bytearray(size)


def test_a_larger_machine_caches_more_within_bounds() -> None:
    gib = 1 << 30

    assert [default_bytes(memory) for memory in (gib, 4 * gib, 64 * gib)] == [LEAST_BYTES, gib // 4, gib]
    assert CacheBudget(-1).limit == LEAST_BYTES
    assert CacheBudget(0).limit == 0


def test_a_read_in_the_middle_of_a_batch_begins_with_that_whole_batch() -> None:
    tail = Tail(CacheBudget(1 << 20), 100)
    first, second = batch(10), batch(20)
    tail.append(105, first)
    tail.append(110, second)

    assert tail.read(102, 1000, whole_first=True) == ([first, second], 30)
    assert tail.read(105, 1000, whole_first=True) == ([second], 20)
    assert tail.read(110, 1000, whole_first=True) == ([], 0)


def test_the_first_batch_is_whole_even_when_it_is_larger_than_the_limit() -> None:
    tail = Tail(CacheBudget(1 << 20), 0)
    tail.append(1, batch(500))

    assert tail.read(0, 10, whole_first=True)[1] == 500
    assert tail.read(0, 10, whole_first=False) == ([], 0)


def test_a_batch_that_does_not_fit_any_more_waits_for_the_next_read() -> None:
    tail = Tail(CacheBudget(1 << 20), 0)
    for end in range(1, 6):
        tail.append(end, batch(100))

    assert tail.read(0, 250, whole_first=True)[1] == 200


def test_the_oldest_batch_of_all_partitions_goes_first() -> None:
    budget = CacheBudget(3 * (100 + ENTRY_OVERHEAD))
    one, two = Tail(budget, 0), Tail(budget, 0)
    one.append(1, batch(100))
    two.append(1, batch(100))
    one.append(2, batch(100))
    two.append(2, batch(100))

    assert (one.start, two.start) == (1, 0)
    assert budget.used == 3 * (100 + ENTRY_OVERHEAD)


def test_tails_that_come_and_go_leave_nothing_behind() -> None:
    """Topics that are deleted long before the budget is used up."""
    budget = CacheBudget(1 << 30)
    stays = Tail(budget, 0)
    stays.append(1, batch(10))
    for _ in range(1_000):
        gone = Tail(budget, 0)
        for end in range(1, 11):
            gone.append(end, batch(10))
        gone.clear(11)
    assert len(budget.order) < 2_000
    budget.limit = 0
    stays.append(2, batch(10))
    assert (stays.start, budget.used) == (2, 0)


def test_places_of_a_cleared_tail_are_passed_over() -> None:
    budget = CacheBudget(2 * (10 + ENTRY_OVERHEAD))
    one, two = Tail(budget, 0), Tail(budget, 0)
    one.append(1, batch(10))
    one.append(2, batch(10))
    one.clear(7)
    assert budget.used == 0
    one.append(8, batch(10))
    two.append(1, batch(10))
    two.append(2, batch(10))

    assert (one.start, two.start) == (8, 0)
    assert one.size == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["append", "clear"]), st.integers(1, 300), st.integers(1, 5)),
        max_size=60,
    ),
    st.integers(0, 4000),
)
def test_what_a_tail_holds_is_always_the_newest_part_of_its_log(
    steps: list[tuple[int, str, int, int]], limit: int
) -> None:
    budget = CacheBudget(limit)
    tails = [Tail(budget, 0) for _ in range(3)]
    logs: list[list[tuple[int, int, bytearray]]] = [[], [], []]
    ends = [0, 0, 0]
    for which, action, size, span in steps:
        if action == "clear":
            tails[which].clear(ends[which])
            logs[which].clear()
            continue
        made = batch(size)
        logs[which].append((ends[which], ends[which] + span, made))
        ends[which] += span
        tails[which].append(ends[which], made)

        assert budget.used <= budget.limit
        assert budget.used == sum(
            tail.size + ENTRY_OVERHEAD * sum(base >= tail.start for base, _, _ in log)
            for tail, log in zip(tails, logs, strict=True)
        )
    for tail, log, end in zip(tails, logs, ends, strict=True):
        for offset in range(tail.start, end):
            expected = [kept for _, after, kept in log if after > offset]
            assert tail.read(offset, 1 << 30, whole_first=True)[0] == expected


def test_producers_of_joined_batches_are_found() -> None:
    first, second, third = (
        build([(None, b"value", 1, ())], producer_id=producer, producer_epoch=0, base_sequence=0)
        for producer in (7, 1 << 40, 8)
    )
    assert producers_of([bytes(first) + bytes(second), memoryview(third)]) == {7, 1 << 40, 8}
    assert producers_of([]) == set()
