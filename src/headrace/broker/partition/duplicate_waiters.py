"""Batches that came again before the first copy of them was acknowledged."""

from collections import deque
from typing import NamedTuple

from headrace.aio.callbacks import tell
from headrace.topics.callbacks import AppendDone
from headrace.topics.model import Appended

_BATCH = "a repeated batch"


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
            tell(first.done, first.appended, _BATCH)
        if not self.waiting:
            self.waiting = None

    def fail(self, error: Exception) -> None:
        """It is in doubt what storage has."""
        waiting, self.waiting = self.waiting or (), None
        for each in waiting:
            tell(each.done, error, _BATCH)
