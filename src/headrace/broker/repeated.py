"""Batches that came again before the first copy of them was acknowledged."""

from collections import deque
from typing import NamedTuple

import structlog

from headrace.topics.answers import AppendDone
from headrace.topics.model import Appended

_log = structlog.get_logger("headrace.log")


class _Waiting(NamedTuple):
    end: int
    appended: Appended
    done: AppendDone


class Repeated:
    """Those of one partition, in order."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        # Seldom more than a few, though a log whose storage is slow may have 100,000. An empty deque takes 700 bytes of
        # each partition.
        self.waiting: deque[_Waiting] | None = None
        """None: nobody waits."""

    def add(self, end: int, appended: Appended, done: AppendDone) -> None:
        """Tell `done` where the batch is, which ends before offset `end`, once storage has it."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(_Waiting(end, appended, done))

    def answer(self, stored_end: int) -> None:
        """Storage has everything before this offset."""
        # Whoever is told may have more added, answered, or all the others fail.
        while self.waiting and self.waiting[0].end <= stored_end:
            first = self.waiting.popleft()
            _tell(first.done, first.appended)
        if not self.waiting:
            self.waiting = None

    def fail(self, error: Exception) -> None:
        """It is in doubt what storage has."""
        waiting, self.waiting = self.waiting or (), None
        for each in waiting:
            _tell(each.done, error)


def _tell(done: AppendDone, result: Appended | Exception) -> None:
    try:
        done(result)
    except Exception:
        # One client's trouble; all who wait behind it are still told.
        _log.exception("an answer to a repeated batch could not be handled")
