"""The checker of moved numbers finds each anomaly."""

from collections.abc import Sequence

import pytest
from tests.cluster.transfers import Moved, Outcomes, check

FIRST = [Moved(number, "a:0", 2, number) for number in range(2)]
SECOND = [Moved(2 + index, "a:1", 2, index) for index in range(2)]
LOGS = [[FIRST[0], SECOND[0]], [FIRST[1], SECOND[1]]]


def outcomes(committed: Sequence[str] = (), aborted: Sequence[str] = ()) -> Outcomes:
    made = Outcomes()
    for each in committed:
        made.note(each, commit=True)
    for each in aborted:
        made.note(each, commit=False)
    return made


def test_whole_transactions_in_order_pass() -> None:
    check(LOGS, 4, outcomes(["a:0", "a:1"], ["b:0"]))
    check(LOGS, 4, outcomes(["a:0"]))


@pytest.mark.parametrize(
    ("logs", "told", "what"),
    [
        ([LOGS[0], [*LOGS[1], FIRST[0]]], outcomes(), "moved twice"),
        ([LOGS[0], LOGS[1][:1]], outcomes(), "never moved"),
        ([LOGS[0][::-1], LOGS[1]], outcomes(), "G0"),
        (LOGS, outcomes(aborted=["a:1"]), "G1a"),
        (LOGS, outcomes(["c:9"]), "lost"),
        ([[FIRST[0]], [FIRST[1], SECOND[0], Moved(3, "b:0", 1, 0)]], outcomes(), "fractured"),
    ],
)
def test_each_anomaly_is_found(logs: list[list[Moved]], told: Outcomes, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check(logs, 4, told)
