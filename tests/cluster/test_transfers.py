"""Clients that never return do not stop a round."""

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaException
from tests.cluster import members, transfers
from tests.cluster.members import Threads
from tests.cluster.transfers import Stuck, send_offsets


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
