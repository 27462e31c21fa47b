"""Batches that came again before the first copy of them was acknowledged."""

from typing import NamedTuple

from headrace.broker.ports import AppendDone
from headrace.topics.model import Appended


class _Waiting(NamedTuple):
    end: int
    appended: Appended
    done: AppendDone


class Repeated:
    """Those of one partition, in order."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # Seldom more than a few; an empty deque takes 700 bytes of each partition.
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, end: int, appended: Appended, done: AppendDone) -> None:
        """Tell `done` where the batch is, which ends before offset `end`, once storage has it."""
        self._waiting.append(_Waiting(end, appended, done))

    def answer(self, stored_end: int) -> None:
        """Storage has everything before this offset."""
        while self._waiting and self._waiting[0].end <= stored_end:
            first = self._waiting.pop(0)
            first.done(first.appended)

    def fail(self, error: Exception) -> None:
        """It is in doubt what storage has."""
        while self._waiting:
            self._waiting.pop(0).done(error)
