"""Batches that came again wait for their first copy."""

import sys
from types import FrameType
from typing import Any

import pytest
import structlog

from headrace.broker.partition.high_watermark import DuplicateWaiters
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import AppendDone, Appended

AWAY = StorageUnavailable("Redis does not answer")


class Waiting:
    """Repeated batches, one per offset, and their responses in order."""

    def __init__(self, count: int) -> None:
        self.repeated = DuplicateWaiters()
        self.told: list[tuple[int, bool]] = []
        for number in range(count):
            self.add(number)

    def add(self, number: int, then: AppendDone = lambda _: None) -> None:
        def done(result: Appended | Exception) -> None:
            self.told.append((number, isinstance(result, Appended)))
            then(result)

        self.repeated.add(number + 1, Appended(number, duplicate=True), done)


def _fail(_: Appended | Exception) -> None:
    raise RuntimeError("its connection is gone")


def test_they_are_answered_in_order_as_far_as_storage_has_them() -> None:
    waiting = Waiting(5)
    waiting.repeated.answer(3)
    assert waiting.told == [(0, True), (1, True), (2, True)]
    assert waiting.repeated.waiting is not None
    waiting.repeated.fail(AWAY)
    assert waiting.told[3:] == [(3, False), (4, False)]
    assert waiting.repeated.waiting is None
    waiting.add(5)
    waiting.repeated.answer(6)
    assert waiting.told[5:] == [(5, True)]


def test_one_that_is_added_while_others_are_answered_is_answered_behind_them() -> None:
    waiting = Waiting(0)

    def add_more(_: Appended | Exception) -> None:
        waiting.add(2)
        waiting.add(3)

    waiting.add(0, add_more)
    waiting.add(1)
    waiting.repeated.answer(3)
    assert waiting.told == [(0, True), (1, True), (2, True)]
    waiting.repeated.answer(4)
    assert waiting.told[3:] == [(3, True)]


def test_one_that_is_added_while_others_fail_waits() -> None:
    waiting = Waiting(0)
    waiting.add(0, lambda _: waiting.add(2))
    waiting.add(1)
    waiting.repeated.fail(AWAY)
    assert waiting.told == [(0, False), (1, False)]
    waiting.repeated.answer(3)
    assert waiting.told[2:] == [(2, True)]


def test_each_waiter_is_called_once_if_one_fails_all() -> None:
    waiting = Waiting(0)
    waiting.add(0, lambda _: waiting.repeated.fail(AWAY))
    waiting.add(1)
    waiting.repeated.answer(2)
    assert waiting.told == [(0, True), (1, False)]


@pytest.mark.parametrize("stored", [True, False])
def test_all_waiters_are_called_although_one_raises(stored: bool) -> None:
    waiting = Waiting(0)
    waiting.add(0, _fail)
    waiting.add(1)
    with structlog.testing.capture_logs() as logged:
        if stored:
            waiting.repeated.answer(2)
        else:
            waiting.repeated.fail(AWAY)
    assert waiting.told == [(0, stored), (1, stored)]
    assert [(line["event"], line["to"]) for line in logged] == [("response handling failed", "a repeated batch")]


def test_notifying_one_waiter_does_not_move_the_others() -> None:
    """A list's first cannot be taken from it otherwise: with 100,000 of them nothing else is done for seconds."""
    waiting, called = Waiting(10), set()

    def look(_frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and isinstance(getattr(what, "__self__", None), list):
            called.add(what.__name__)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        waiting.repeated.answer(5)
        waiting.repeated.fail(AWAY)
    finally:
        sys.setprofile(before)
    assert len(waiting.told) == 10
    assert called == {"append"}, "only the test's own"
