import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.flights import WHOLE, Figure, Tally, carriers, compare, described, months

FLIGHTS = st.lists(
    st.tuples(st.sampled_from(["AA", "UA", "9E"]), st.integers(1, 12), st.none() | st.integers(-60, 1500)), max_size=60
)


def tally(flights: list[tuple[str, int, int | None]]) -> Tally:
    counted = Tally()
    for flight in flights:
        counted.add(*flight)
    return counted


def test_a_cancelled_flight_counts_as_a_flight_and_not_in_the_mean() -> None:
    figures = tally([("UA", 1, 10), ("UA", 1, None), ("UA", 1, 20)]).figures()
    assert figures["UA", 1] == Figure(flights=3, departed=2, delay=30)
    assert figures["UA", 1].mean == 15.0


def test_a_group_that_never_departed_has_no_mean() -> None:
    assert tally([("UA", 1, None)]).figures()[WHOLE].mean is None


@given(FLIGHTS)
def test_carriers_months_and_the_whole_are_sums_of_the_flights(flights: list[tuple[str, int, int | None]]) -> None:
    figures = tally(flights).figures()
    for group, figure in figures.items():
        carrier, month = group
        members = [f for f in flights if carrier in {None, f[0]} and month in {None, f[1]}]
        delays = [delay for *_, delay in members if delay is not None]
        assert figure == Figure(len(members), len(delays), sum(delays))
    assert carriers(figures) == sorted({f[0] for f in flights})
    assert months(figures) == sorted({f[1] for f in flights})


@given(FLIGHTS.filter(bool))
def test_the_order_of_flights_changes_nothing(flights: list[tuple[str, int, int | None]]) -> None:
    assert compare(tally(flights).figures(), tally(flights[::-1]).figures()) == []


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([("UA", 1, 10), ("AA", 2, 0)], id="a flight is missing"),
        pytest.param([("UA", 1, 10), ("UA", 1, None), ("AA", 2, 0), ("AA", 2, 0)], id="a flight is there twice"),
        pytest.param([("UA", 1, 10), ("UA", 1, 0), ("AA", 2, 0)], id="a missing delay became zero"),
        pytest.param([("UA", 1, 11), ("UA", 1, None), ("AA", 2, 0)], id="a minute more"),
        pytest.param([("UA", 1, 10), ("UA", 1, None), ("AA", 3, 0)], id="another month"),
        pytest.param([], id="nothing at all"),
    ],
)
def test_one_flight_wrong_is_a_difference(changed: list[tuple[str, int, int | None]]) -> None:
    expected = tally([("UA", 1, 10), ("UA", 1, None), ("AA", 2, 0)]).figures()
    assert compare(expected, tally(changed).figures())


def test_a_difference_says_where_and_what() -> None:
    expected, found = tally([("UA", 1, 10), ("UA", 1, None)]), tally([("UA", 1, 10)])
    assert compare(expected.figures(), found.figures())[0] == (
        "all flights: expected 2 flights, 1 departed, 10 minutes late, found 1 flights, 1 departed, 10 minutes late"
    )


def test_groups_have_names() -> None:
    names = [described(group) for group in (WHOLE, ("UA", None), (None, 3), ("UA", 3))]
    assert names == ["all flights", "UA", "month 3", "UA in month 3"]
