"""Histories of figures: three resolutions in bounded memory."""

from math import isnan

from headrace.console.history import EVERY_MS, NAN, RANGES, History, Ring, chart_range

RECENT, HOURS, DAY = RANGES
DAY_MS = 24 * 3_600_000


def test_ranges_are_found_by_name_and_the_finest_is_the_default() -> None:
    assert [chart_range(each.name) for each in RANGES] == list(RANGES)
    assert chart_range("") is chart_range("1000y") is RECENT
    assert [each.step_ms * each.kept for each in RANGES] == [600_000, 7_200_000, DAY_MS]


def test_coarse_values_are_means_or_maxima_of_their_interval() -> None:
    mean, peak = History(), History(peak=True)
    for number in range(300):  # two steps of a day, of 150 samples each
        for history in (mean, peak):
            history.add(10.0 if number == 20 else 1.0, number * EVERY_MS)
    assert [round(each, 5) for each in mean.over(DAY)] == [1.06, 1.0]
    assert list(peak.over(DAY)) == [10.0, 1.0]
    assert list(mean.over(RECENT)) == list(mean.last())
    assert mean.now == 1.0


def test_a_day_is_kept_and_memory_is_bounded() -> None:
    history = History(peak=True)
    for at_ms in range(0, 3 * DAY_MS, 60_000):
        history.add(at_ms / 3_600_000, at_ms)
    for each in RANGES:
        assert len(history.over(each)) == each.kept
    day = history.over(DAY)
    assert 47.9 < day[0] < 48.2
    assert 71.9 < day[-1] < 72
    assert list(day) == sorted(day)


def test_a_pause_is_a_gap() -> None:
    history = History()
    history.add(1, 0)
    history.add(2, 3 * DAY.step_ms)
    values = history.over(DAY)
    assert [isnan(each) for each in values] == [False, True, True, False]
    # A clock that jumps by years costs no more than the kept values.
    history.add(3, 10**15)
    values = history.over(DAY)
    assert len(values) == DAY.kept
    assert [each for each in values if not isnan(each)] == [3.0]


def test_an_interval_without_values_is_a_gap() -> None:
    history = History(peak=True)
    for at_ms, value in ((0, NAN), (DAY.step_ms, 5.0), (DAY.step_ms + 1, NAN)):
        history.add(value, at_ms)
    gap, value = history.over(DAY)
    assert isnan(gap)
    assert value == 5.0
    assert isnan(history.now)


def test_a_ring_keeps_the_newest_values() -> None:
    ring = Ring(3)
    assert list(ring.last()) == []
    for value in range(5):
        ring.add(value)
    assert list(ring.last()) == [2, 3, 4]
    assert list(ring.last(2)) == [3, 4]
