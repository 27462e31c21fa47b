"""The checks of committed records find each anomaly."""

from collections.abc import Sequence

import msgspec
import pytest
from tests.cluster.committed import (
    Kept,
    Moved,
    Outcomes,
    Record,
    Target,
    check_again,
    check_committed,
    check_kept,
    values_of_keys,
)

FIRST = [Moved(number, "1:9", 2, number) for number in range(2)]
SECOND = [Moved(2 + index, "1:10", 2, index) for index in range(2)]
LOGS = [[FIRST[0], SECOND[0]], [FIRST[1], SECOND[1]]]


def outcomes(committed: Sequence[str] = (), aborted: Sequence[str] = ()) -> Outcomes:
    made = Outcomes()
    for each in committed:
        made.note(each, commit=True)
    for each in aborted:
        made.note(each, commit=False)
    return made


def check(logs: Sequence[Sequence[Moved]], numbers: int, known: Outcomes) -> None:
    target = Target(2)
    target.add(logs)
    target.check(numbers, known)


def test_whole_transactions_in_order_pass() -> None:
    check(LOGS, 4, outcomes(["1:9", "1:10"], ["2:0"]))
    check(LOGS, 4, outcomes(["1:9"]))


def test_the_target_is_read_part_by_part() -> None:
    target = Target(2)
    target.add([[FIRST[0]], [FIRST[1]]])
    target.check(2, outcomes(["1:9"]))
    target.add([[SECOND[0]], [SECOND[1]]])
    target.check(4, outcomes(["1:9", "1:10"]))
    with pytest.raises(AssertionError, match="G0"):
        target.add([[FIRST[0]], []])


@pytest.mark.parametrize(
    ("logs", "outcomes", "what"),
    [
        ([LOGS[0], [*LOGS[1], Moved(0, "2:0", 1, 0)]], outcomes(), "moved twice"),
        ([LOGS[0], LOGS[1][:1]], outcomes(), "never moved"),
        ([LOGS[0][::-1], LOGS[1]], outcomes(), "G0"),
        (LOGS, outcomes(aborted=["1:10"]), "G1a"),
        (LOGS, outcomes(["3:9"]), "lost"),
        ([[FIRST[0]], [FIRST[1], SECOND[0], Moved(3, "2:0", 1, 0)]], outcomes(), "fractured"),
    ],
)
def test_each_anomaly_is_found(logs: list[list[Moved]], outcomes: Outcomes, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check(logs, 4, outcomes)


def kept(transaction: str, index: int) -> bytes:
    return msgspec.json.encode(Kept(transaction, index))


def records(*found: tuple[bytes, bytes | None]) -> list[Record]:
    return [Record(offset, key, value) for offset, (key, value) in enumerate(found)]


A9, A10, B10 = (b"a", kept("1:9", 0)), (b"a", kept("1:10", 1)), (b"b", kept("1:10", 0))
NO_B: tuple[bytes, None] = (b"b", None)
VALUES = {A10[0]: A10[1], b"b": None}
COMMITTED = {"1:9", "1:10"}


def test_the_last_committed_transaction_decides_a_value() -> None:
    known = Outcomes()
    known.write("1:10", [A10, NO_B])
    known.write("1:9", [A9, (b"b", kept("1:9", 1))])
    known.write("1:11", [(b"a", None)])
    assert values_of_keys(COMMITTED, known) == VALUES
    assert values_of_keys([], known) == {}


@pytest.mark.parametrize("log", [[A9, A10], [A10], [A10, NO_B], [B10, A10, NO_B]])
def test_a_cleaned_log_with_the_last_values_passes(log: list[tuple[bytes, bytes | None]]) -> None:
    check_kept([records(*log), []], COMMITTED, VALUES)


@pytest.mark.parametrize(
    ("log", "what"),
    [
        ([A10, B10], "there again"),
        ([], "lost"),
        ([A9], "the last record"),
        ([A10, (b"a", None)], "the last record"),
        ([A9, (b"a", kept("2:0", 0)), A10], "G1a"),
        ([A10, A9, A10], "G0"),
        ([A10, (b"c", kept("1:9", 0))], "no committed transaction wrote"),
    ],
)
def test_each_anomaly_of_a_cleaned_log_is_found(log: list[tuple[bytes, bytes | None]], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check_kept([records(*log)], COMMITTED, VALUES)


def test_a_record_of_an_aborted_transaction_is_found() -> None:
    check_committed(records(A9, NO_B), COMMITTED)
    with pytest.raises(AssertionError, match="G1a"):
        check_committed(records(A9, NO_B), {"1:10"})


def test_records_keep_their_offsets() -> None:
    first = records(A9, B10, A10)
    before = {each.offset: each for each in first[:2]}
    check_again(before, 2, first[1:], "log")
    with pytest.raises(AssertionError, match="log: now"):
        check_again(before, 2, [Record(0, *B10)], "log")
    with pytest.raises(AssertionError, match="before None"):
        check_again(before, 3, first, "log")
