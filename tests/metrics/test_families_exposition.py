"""The text is Prometheus' format, whatever names there are: read back by its own client's parser."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.exposition import read

from headrace.metrics.counters import TICKS, Durations
from headrace.metrics.families import (
    DURATION,
    FAMILIES,
    GROUP_MEMBERS,
    HISTOGRAM_SERIES,
    REQUESTS,
    SERIES_EXCESS,
    STARTED,
    Exposition,
    Kind,
    labels,
)

anything = st.text(st.characters(), max_size=300)  # lone surrogates, too


@given(st.sets(anything | st.text('\\"\n\r\0{}=,\ufffd\ud800d8', max_size=8), min_size=1, max_size=20))
@example({"\ud800", "\ufffdd800"})
@example({"a\\nb", "a\nb", 'a"b', "a\\", "a\\\\"})
@example({"x" * 1_000, "x" * 999 + "y", "x" * 256, "\ud800" * 400})
def test_different_groups_stay_different(names: set[str]) -> None:
    page = Exposition(1_000)
    for number, name in enumerate(sorted(names)):
        page.sample(GROUP_MEMBERS, number, labels(group=name))
    found = read(page.finish())
    values = [value for (name, _), value in found.items() if name == GROUP_MEMBERS.name]
    assert sorted(values) == list(range(len(names)))


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffd\u2028\u2029"), max_size=256))
def test_an_ordinary_name_is_unchanged(name: str) -> None:
    page = Exposition(10)
    page.sample(GROUP_MEMBERS, 3, labels(group=name))
    expected = frozenset({("group", name)}) if name else frozenset()
    assert read(page.finish())[GROUP_MEMBERS.name, expected] == 3


@given(st.lists(st.integers(0, 2**40), max_size=30))
def test_a_histogram_counts_values_below_each_bound(ticks: list[int]) -> None:
    durations = Durations()
    for each in ticks:
        durations.add(each)
    page = Exposition(100)
    page.histogram(DURATION, durations, labels(listener="PLAINTEXT", api="Fetch"))
    found = read(page.finish())
    told = {dict(key)["le"]: value for (name, key), value in found.items() if name.endswith("_bucket")}
    assert len(told) + 2 == HISTOGRAM_SERIES
    for bound, count in told.items():
        assert count == sum(tick / TICKS < float(bound) for tick in ticks)
    assert told["+Inf"] == len(ticks)
    base = frozenset({("listener", "PLAINTEXT"), ("api", "Fetch")})
    assert found[f"{DURATION.name}_count", base] == len(ticks)
    assert math.isclose(found[f"{DURATION.name}_sum", base], sum(ticks) / TICKS)


def test_what_does_not_fit_is_counted() -> None:
    page = Exposition(HISTOGRAM_SERIES + 2)
    page.histogram(DURATION, Durations())
    for name in "abcde":
        page.sample(GROUP_MEMBERS, 1, labels(group=name))
    found = read(page.finish())
    assert len(found) == HISTOGRAM_SERIES + 2 + 1
    assert found[SERIES_EXCESS.name, frozenset()] == 3


def test_series_of_a_metric_stand_together() -> None:
    page = Exposition(10)
    page.sample(REQUESTS, 1, labels(api="a"))
    page.sample(STARTED, 1)
    with pytest.raises(ValueError, match="do not stand together"):
        page.sample(REQUESTS, 1, labels(api="b"))


def test_names_follow_prometheus_conventions() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert family.doc.endswith(".")
        assert "\n" not in family.doc
        assert "\\" not in family.doc
