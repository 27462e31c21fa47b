"""Two holders of a partition are found, and nothing else is."""

import pytest
from tests.cluster.holders import Holders


def test_partitions_that_change_hands_are_no_anomaly() -> None:
    holders = Holders("group")
    holders.assigned("a", [0, 1, 2])
    holders.given_up("a", [2])
    holders.assigned("b", [2])
    holders.gone("a")
    holders.assigned("b", [0, 1])
    # A member that is assigned what it has, after it lost its connection, is still alone.
    holders.assigned("b", [0])
    holders.check()
    assert holders.grants == 7


def test_two_holders_are_an_anomaly() -> None:
    holders = Holders("group")
    holders.assigned("a", [0, 1])
    holders.assigned("b", [1])
    holders.given_up("a", [1])
    with pytest.raises(AssertionError, match=r"1 partitions with two holders: group: 1 is held by \['a'\] and b"):
        holders.check()
