"""Share sessions: epochs, limits, and the order in which partitions are served."""

from functools import partial
from uuid import UUID

import pytest

from headrace.broker.sharing import session as sessions
from headrace.broker.sharing.session import SessionError, SessionProblem, ShareSessions

TOPIC = UUID(int=1)


def made(limit: int = 10) -> ShareSessions:
    return ShareSessions(lambda: limit)


def problem(call: object) -> SessionProblem:
    assert callable(call)
    with pytest.raises(SessionError) as raised:
        call()
    return raised.value.problem


def test_each_request_has_the_next_epoch() -> None:
    known = made()
    assert problem(lambda: known.find("g", "m", 1)) is SessionProblem.SHARE_SESSION_NOT_FOUND
    session = known.open("g", "m")
    for epoch in (1, 2):
        assert known.find("g", "m", epoch) is session
    assert problem(lambda: known.find("g", "m", 2)) is SessionProblem.INVALID_SHARE_SESSION_EPOCH
    assert known.find("g", "m", -1) is session, "the final request needs no epoch"
    session.epoch = 2**31 - 1
    known.find("g", "m", 2**31 - 1)
    assert known.find("g", "m", 1) is session, "it begins again at 1"


def test_there_are_so_many_sessions_and_no_more() -> None:
    known = made(2)
    first = known.open("g", "a")
    known.open("g", "b")
    assert problem(lambda: known.open("g", "c")) is SessionProblem.SHARE_SESSION_LIMIT_REACHED
    known.open("g", "b")
    known.end(first)
    known.open("g", "c")
    assert len(known) == 2


def test_an_older_session_of_a_member_cannot_end_the_newer_one() -> None:
    known = made()
    old = known.open("g", "m")
    new = known.open("g", "m")
    known.end(old)
    assert new in known
    assert old not in known
    assert known.has_any("g")
    known.end(new)
    assert not known.has_any("g")


def test_the_partition_after_the_last_one_served_is_next() -> None:
    known = made()
    session = known.open("g", "m")
    places = [(TOPIC, index) for index in range(3)]
    known.add(session, [*places, *places])
    assert session.in_turn() == places
    session.served = places[1]
    assert session.in_turn() == [places[2], places[0], places[1]]
    known.forget(session, [places[1], (TOPIC, 9)])
    assert session.in_turn() == [places[0], places[2]]


def test_all_sessions_together_have_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_PARTITIONS", 3)
    known = made()
    first, second = known.open("g", "a"), known.open("g", "b")
    known.add(first, [(TOPIC, 0), (TOPIC, 1)])
    full = SessionProblem.SHARE_SESSION_LIMIT_REACHED
    assert problem(lambda: known.add(second, [(TOPIC, 0), (TOPIC, 1)])) is full
    known.end(first)
    known.add(second, [(TOPIC, 1), (TOPIC, 2)])


def test_one_session_has_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_OF_SESSION", 2)
    known = made()
    first, second = known.open("g", "a"), known.open("g", "b")
    full = SessionProblem.SHARE_SESSION_LIMIT_REACHED
    assert problem(lambda: known.add(first, [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)])) is full
    known.add(second, [(TOPIC, 0)])


def test_the_connection_of_a_replaced_session_forgets_it() -> None:
    known = made()
    ended: list[int] = []
    for number in range(3):
        known.open("g", "m").ended = partial(ended.append, number)
    assert ended == [0, 1]


def test_a_session_that_has_ended_gets_no_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would count for ever, until no session can have any."""
    monkeypatch.setattr(sessions, "MOST_PARTITIONS", 1)
    known = made()
    old = known.open("g", "m")
    new = known.open("g", "m")
    assert problem(lambda: known.add(old, [(TOPIC, 0)])) is SessionProblem.SHARE_SESSION_NOT_FOUND
    known.add(new, [(TOPIC, 0)])
