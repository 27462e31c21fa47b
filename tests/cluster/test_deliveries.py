"""Lost records and records that were fetched after they were accepted are found, and repeated deliveries are not."""

import itertools

import pytest
from tests.cluster.deliveries import Deliveries

ACKNOWLEDGED = [{0: 0, 1: 1}, {7: 0}]


def all_of() -> Deliveries:
    times = itertools.count()
    deliveries = Deliveries(lambda: next(times))
    deliveries.polls("one")
    for place, number in (((0, 0), 0), ((0, 1), 1), ((1, 0), 7)):
        deliveries.delivered("one", place, number, 1)
    return deliveries


def test_repeated_deliveries_are_no_anomaly() -> None:
    deliveries = all_of()
    deliveries.unknown("one", [(0, 0)])
    deliveries.delivered("two", (0, 0), 0, 2)
    deliveries.accepted("two", [(0, 0), (0, 1), (1, 0)])
    deliveries.again([])
    deliveries.check(ACKNOWLEDGED)
    assert (deliveries.given, deliveries.twice, deliveries.late, deliveries.open()) == (4, 1, 0, 0)


def test_records_that_no_member_was_given_are_lost() -> None:
    deliveries = Deliveries()
    deliveries.delivered("one", (0, 0), 0, 1)
    assert (deliveries.unseen(ACKNOWLEDGED), deliveries.open()) == (2, 1)
    with pytest.raises(AssertionError, match="2 acknowledged records were never delivered"):
        deliveries.check(ACKNOWLEDGED)


def test_a_record_from_a_queue_may_be_accepted_late() -> None:
    deliveries = all_of()
    deliveries.polls("two")
    deliveries.accepted("one", [(0, 1)])
    for _ in range(2):
        deliveries.polls("two")
    deliveries.delivered("two", (0, 1), 1, 1)
    deliveries.accepted("two", [(0, 1)])
    deliveries.check(ACKNOWLEDGED)
    assert deliveries.late == 1


def test_a_record_is_not_accepted_twice() -> None:
    deliveries = all_of()
    deliveries.accepted("one", [(0, 1)])
    for _ in range(3):
        deliveries.polls("two")
    deliveries.delivered("two", (0, 1), 1, 2)
    # The response was late, unless its acknowledgement succeeds.
    deliveries.check(ACKNOWLEDGED)
    deliveries.accepted("two", [(0, 1)])
    expected = (
        r"\(0, 1\) was fetched after it was accepted, and accepted again \(.* 1 to one, .* from one, .* 2 to two, "
    )
    with pytest.raises(AssertionError, match=expected):
        deliveries.check(ACKNOWLEDGED)


def test_an_accepted_record_does_not_come_again() -> None:
    deliveries = all_of()
    deliveries.accepted("one", [(1, 0)])
    deliveries.again([(1, 0), (0, 0)])
    with pytest.raises(AssertionError, match=r"1 anomalies of deliveries: \(1, 0\) was delivered after"):
        deliveries.check(ACKNOWLEDGED)


def test_a_delivery_has_a_count() -> None:
    deliveries = all_of()
    deliveries.delivered("one", (0, 0), 0, 0)
    with pytest.raises(AssertionError, match="with the count 0"):
        deliveries.check(ACKNOWLEDGED)
