"""Lost records and records that were accepted twice are found, and repeated deliveries are not."""

import pytest
from tests.cluster.deliveries import Deliveries

ACKNOWLEDGED = [{0: 0, 1: 1}, {7: 0}]


def all_of() -> Deliveries:
    deliveries = Deliveries()
    for place, number in (((0, 0), 0), ((0, 1), 1), ((1, 0), 7)):
        deliveries.delivered(place, number, 1)
    return deliveries


def test_repeated_deliveries_are_no_anomaly() -> None:
    deliveries = all_of()
    deliveries.unknown([(0, 0)])
    deliveries.delivered((0, 0), 0, 2)
    deliveries.accepted([(0, 0), (0, 1), (1, 0)])
    deliveries.again([])
    deliveries.check(ACKNOWLEDGED)
    assert (deliveries.given, deliveries.twice, deliveries.open()) == (4, 1, 0)


def test_records_that_no_member_was_given_are_lost() -> None:
    deliveries = Deliveries()
    deliveries.delivered((0, 0), 0, 1)
    assert (deliveries.unseen(ACKNOWLEDGED), deliveries.open()) == (2, 1)
    with pytest.raises(AssertionError, match="2 acknowledged records were never delivered"):
        deliveries.check(ACKNOWLEDGED)


def test_a_record_is_accepted_once() -> None:
    deliveries = all_of()
    deliveries.accepted([(0, 1)])
    deliveries.accepted([(0, 1)])
    with pytest.raises(AssertionError, match=r"\(0, 1\) was accepted 2 times"):
        deliveries.check(ACKNOWLEDGED)


def test_an_accepted_record_does_not_come_again() -> None:
    deliveries = all_of()
    deliveries.accepted([(1, 0)])
    deliveries.again([(1, 0), (0, 0)])
    with pytest.raises(AssertionError, match=r"1 anomalies of deliveries: \(1, 0\) was delivered after"):
        deliveries.check(ACKNOWLEDGED)


def test_a_delivery_has_a_count() -> None:
    deliveries = all_of()
    deliveries.delivered((0, 0), 0, 0)
    with pytest.raises(AssertionError, match="with the count 0"):
        deliveries.check(ACKNOWLEDGED)
