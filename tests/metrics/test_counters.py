"""Durations fall into the slots that their bounds say."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics.counters import ApiCounters, Counters, Durations


@given(st.lists(st.integers(0, 2**40), max_size=50))
def test_a_duration_is_below_the_bound_of_its_slot_and_not_below_half_of_it(ticks: list[int]) -> None:
    durations = Durations()
    for each in ticks:
        before = list(durations.slots)
        durations.add(each)
        [slot] = [n for n, (a, b) in enumerate(zip(before, durations.slots, strict=True)) if a != b]
        assert each < 2**slot <= max(1, 2 * each)
    assert durations.count == len(ticks)
    assert durations.ticks == sum(ticks)


def test_an_answer_counts_once_for_each_error_in_it() -> None:
    api = ApiCounters("Fetch")
    api.failed({3, 6})
    api.failed({3})
    assert api.errors == {3: 2, 6: 1}


def test_listeners_count_apart() -> None:
    counters = Counters()
    one, other = (counters.listener(name, {0: "Produce"}) for name in ("PLAINTEXT", "SSL"))
    one.apis[0].add(5)
    assert [each.name for each in counters.listeners] == ["PLAINTEXT", "SSL"]
    assert (one.apis[0].count, other.apis[0].count) == (1, 0)
