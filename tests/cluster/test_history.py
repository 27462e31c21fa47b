"""The checker of histories accepts a good one, and names each anomaly."""

from collections.abc import Callable

import pytest
from tests.cluster.history import Anomaly, Audience, History, Kind

TOLD = [{0: 0, 1: 1, 2: 2, 3: 3}, {10: 0}]
LOGS = [[(0, 0), (1, 1), (2, 2), (3, 3)], [(0, 10)]]


def read(audience: Audience, *places: tuple[int, int, int], reader: str = "one") -> None:
    for partition, offset, number in places:
        audience.polled(reader, partition, offset, number)


def read_all(audience: Audience) -> None:
    read(audience, *((0, number, number) for number in range(4)), (1, 0, 10))


def dense(*numbers: int) -> list[tuple[int, int]]:
    """A log of these records, from offset 0 on."""
    return list(enumerate(numbers))


def test_a_good_history() -> None:
    history = History()
    group, alone = history.audience("group"), history.audience("alone")
    read(group, (0, 0, 0), (0, 1, 1), (1, 0, 10))
    assert history.unseen(TOLD) == 2 + 5
    # Another member takes over from what was committed, and the first one comes back.
    read(group, (0, 1, 1), (0, 2, 2), reader="two")
    group.began("one")
    read(group, (0, 2, 2), (0, 3, 3))
    read_all(alone)
    assert history.unseen(TOLD) == 0
    assert history.found(TOLD, LOGS) == []
    assert (group.twice, alone.twice) == (2, 0)
    history.check(TOLD, LOGS)


def test_a_member_may_begin_at_any_recent_commit() -> None:
    times = iter([1, 7, 8, 9, 10])
    history = History(now=lambda: next(times))
    group = history.audience("group")
    read(group, *((0, number, number) for number in range(4)))
    for offset in (1, 4, 2):
        group.committed(0, offset)
    group.began("two")
    group.committed(0, 4)
    read(group, (0, 2, 2), (0, 3, 3), reader="two")
    history.check([{}], [dense(0, 1, 2, 3)])


def test_unacknowledged_records_may_exist() -> None:
    history = History()
    read_all(history.audience("group"))
    assert history.found([{0: 0, 3: 3}, {}], LOGS) == []
    # Without an answer it may have come later than what was sent after it.
    assert History().found([{1: 0}], [dense(1, 0)]) == []


def test_rising_offsets_show_skipped_records() -> None:
    told, logs = [{0: 7, 1: 9, 2: 40}], [[(7, 0), (9, 1), (40, 2)]]
    good = History(dense=False)
    read(good.audience("group"), (0, 7, 0), (0, 9, 1), (0, 40, 2))
    good.check(told, logs)
    skipped = History(dense=False)
    read(skipped.audience("group"), (0, 7, 0), (0, 40, 2))
    with pytest.raises(Anomaly, match=r"1 skipped poll, 1 unseen"):
        skipped.check(told, logs)
    elsewhere = History(dense=False)
    with pytest.raises(Anomaly, match=r"1 lost"):
        elsewhere.check([{0: 7, 1: 8}], logs)


def lost(history: History) -> None:
    read_all(history.audience("group"))
    history.check([*TOLD[:1], {10: 0, 11: 1}], LOGS)


def lost_and_written_over(history: History) -> None:
    history.check([{0: 0, 1: 1}], [dense(0, 2)])


def unseen(history: History) -> None:
    read(history.audience("group"), (0, 0, 0), (0, 1, 1))
    history.check(TOLD, LOGS)


def unseen_by_one_of_two(history: History) -> None:
    read_all(history.audience("group"))
    history.audience("alone")
    history.check(TOLD, LOGS)


def duplicate(history: History) -> None:
    history.check([{0: 0, 1: 1}], [dense(0, 1, 1)])


def back(history: History) -> None:
    read(history.audience("group"), (0, 0, 0), (0, 1, 1), (0, 0, 0))
    history.check([{}], [dense(0, 1)])


def again(history: History) -> None:
    read(history.audience("group"), (0, 0, 0), (0, 0, 0))
    history.check([{}], [dense(0)])


def skipped(history: History) -> None:
    read(history.audience("group"), (0, 0, 0), (0, 2, 2))
    history.check([{}], [dense(0, 1, 2)])


def skipped_by_all(history: History) -> None:
    group = history.audience("group")
    read(group, (0, 0, 0))
    read(group, (0, 2, 2), reader="two")
    history.check([{}], [dense(0, 1, 2)])


def sent_back(history: History) -> None:
    history.check([{0: 1, 1: 0}], [dense(1, 0)])


def two_as_polled(history: History) -> None:
    read(history.audience("group"), (0, 0, 7))
    read(history.audience("alone"), (0, 0, 8))
    history.check([{}], [dense(7)])


def two_as_acknowledged(history: History) -> None:
    history.check([{0: 0, 1: 1}], [dense(0, 2, 1)])


def taken_back(history: History) -> None:
    read(history.audience("group"), (0, 0, 0), (0, 1, 1))
    history.check([{0: 0}], [dense(0)])


def began_before_a_commit(history: History) -> None:
    group = history.audience("group")
    read(group, (0, 0, 0), (0, 1, 1), (0, 2, 2))
    group.committed(0, 2)
    history.now = lambda: 10
    group.began("two")
    read(group, (0, 1, 1), reader="two")
    history.check([{}], [dense(0, 1, 2)])


def told_of_a_reset(history: History) -> None:
    history.audience("group").was_told("one", "offset out of range")
    history.check([{}], [dense()])


@pytest.mark.parametrize(
    ("bad", "kinds"),
    [
        (lost, {Kind.LOST, Kind.UNSEEN}),
        (lost_and_written_over, {Kind.LOST, Kind.TWO}),
        (unseen, {Kind.UNSEEN}),
        (unseen_by_one_of_two, {Kind.UNSEEN}),
        (duplicate, {Kind.DUPLICATE}),
        (back, {Kind.POLL_BACK}),
        (again, {Kind.POLL_BACK}),
        (skipped, {Kind.POLL_SKIP}),
        (skipped_by_all, {Kind.POLL_SKIP}),
        (sent_back, {Kind.SEND_BACK}),
        (two_as_polled, {Kind.TWO}),
        (two_as_acknowledged, {Kind.TWO}),
        (taken_back, {Kind.GONE}),
        (began_before_a_commit, {Kind.COMMIT_LOST}),
        (told_of_a_reset, {Kind.RESET}),
    ],
)
def test_each_anomaly_is_reported(bad: Callable[[History], None], kinds: set[Kind]) -> None:
    history = History(now=lambda: 1)
    with pytest.raises(Anomaly) as told:
        bad(history)
    found = history.found([], [])
    assert {each.kind for each in found} == kinds, found
    assert all(str(each) in str(told.value) for each in found)


def test_every_kind_of_anomaly_has_a_bad_history() -> None:
    marks = test_each_anomaly_is_reported.pytestmark  # type: ignore[attr-defined]
    assert {kind for _, kinds in marks[0].args[1] for kind in kinds} == set(Kind)
