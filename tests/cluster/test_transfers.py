"""The checker of moved numbers finds each anomaly, and clients that never return do not stop a round."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaException
from tests.cluster import members, transfers
from tests.cluster.members import Threads
from tests.cluster.transfers import Moved, Outcomes, Stuck, check, send_offsets

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
    ("logs", "outcomes", "what"),
    [
        ([LOGS[0], [*LOGS[1], FIRST[0]]], outcomes(), "moved twice"),
        ([LOGS[0], LOGS[1][:1]], outcomes(), "never moved"),
        ([LOGS[0][::-1], LOGS[1]], outcomes(), "G0"),
        (LOGS, outcomes(aborted=["a:1"]), "G1a"),
        (LOGS, outcomes(["c:9"]), "lost"),
        ([[FIRST[0]], [FIRST[1], SECOND[0], Moved(3, "b:0", 1, 0)]], outcomes(), "fractured"),
    ],
)
def test_each_anomaly_is_found(logs: list[list[Moved]], outcomes: Outcomes, what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        check(logs, 4, outcomes)


class Sender:
    """A producer whose call of offsets does something."""

    def __init__(self, what: Any) -> None:
        self.send_offsets_to_transaction = what


def test_a_call_that_never_returns_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "STUCK_S", 0.01)
    released = threading.Event()
    stuck: Any = Sender(lambda *_: released.wait())
    with pytest.raises(Stuck):
        send_offsets(stuck, [], None)
    released.set()


def test_an_error_of_the_call_is_raised() -> None:
    def refused(*_: object) -> None:
        raise KafkaException("refused")

    producer: Any = Sender(refused)
    with pytest.raises(KafkaException, match="refused"):
        send_offsets(producer, [], None)
    returns: Any = Sender(lambda *_: None)
    send_offsets(returns, [], None)


def test_threads_that_do_not_end_are_an_error_with_their_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "END_S", 0.01)
    released = threading.Event()

    class Waiting(Threads):
        def work(self, name: str) -> None:
            released.wait()

    waiting = Waiting(1)
    with pytest.raises(AssertionError, match=r"do not end:\n(.|\n)* in work"):
        waiting.stop()
    released.set()
