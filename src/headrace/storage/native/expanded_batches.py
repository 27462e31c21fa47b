"""Batches of native topics that are opened: how many bytes of them wait for Redis, over all topics and clients.

They are opened only where there is room; else they wait as they came, which is what their request is counted with. All
wait in one line: none overtakes another of its partition, and who waits holds nothing that somebody ahead needs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from headrace.aio.callbacks import tell

MOST_BYTES = 64 << 20
"""Of opened batches without an answer of Redis: with so many no more are opened. The last one comes on top."""
_SLICE_S = 0.004
"""How long batches are opened in one turn of the event loop; the last one comes on top here, too."""

Turn = Callable[[Exception | None], None]
"""Called once: with None where there is room, else with why it will not come to that."""


class _Waiting:
    __slots__ = ("stream", "turn")

    def __init__(self, stream: str, turn: Turn) -> None:
        self.stream = stream
        self.turn: Turn | None = turn
        """None: it was refused."""


class Opened:
    """Bytes of opened batches, from their opening to Redis' answer, and the line of those that wait to be opened."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """Nothing is opened. `most`: bytes with which no more is."""
        self._most = most
        self.used = 0
        self._line: deque[_Waiting] = deque()
        self._of: dict[str, deque[_Waiting]] = {}
        """Stream -> those of the line that wait for it; none without any."""
        self._due = False

    @property
    def has_room(self) -> bool:
        """Whether a batch may be opened now: there is room, and nobody waits."""
        return self.used < self._most and not self._of

    @property
    def any_waiting(self) -> bool:
        """Whether somebody waits."""
        return bool(self._of)

    def take(self, size: int) -> None:
        """A batch was opened to so many bytes."""
        self.used += size

    def give_back(self, size: int) -> None:
        """Redis has answered one, or never will."""
        self.used -= size
        self._go_on()

    def wait(self, stream: str, turn: Turn) -> None:
        """Call `turn` when all that waits ahead has had its turn and there is room; never before this returns."""
        waiting = _Waiting(stream, turn)
        self._line.append(waiting)
        self._of.setdefault(stream, deque()).append(waiting)
        self._go_on()

    def refuse(self, stream: str, error: Exception) -> None:
        """Tell all who wait to append to a stream that it will not come to that."""
        for waiting in self._of.pop(stream, ()):
            self._tell(waiting, error)
        if not self._of:
            self._line.clear()

    def _go_on(self) -> None:
        """Not at once: who gives back is in the middle of Redis' answers, and to open a batch takes time."""
        if self._of and self.used < self._most and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._due = False
        until = perf_counter() + _SLICE_S
        while self._of and self.used < self._most:
            waiting = self._line.popleft()
            if waiting.turn is None:
                continue
            same = self._of[waiting.stream]
            same.popleft()
            if not same:
                del self._of[waiting.stream]
            self._tell(waiting, None)
            if perf_counter() >= until:
                break
        self._go_on()

    @staticmethod
    def _tell(waiting: _Waiting, error: Exception | None) -> None:
        turn, waiting.turn = waiting.turn, None
        if turn is not None:
            tell(turn, error, "a batch that waited to be opened")
