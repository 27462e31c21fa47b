"""A clock that only moves when told to, so that tests of timers take no time."""

import heapq
from collections.abc import Callable
from itertools import count

import msgspec


class ManualTimer(msgspec.Struct):
    """An arranged call; `cancel` calls it off."""

    deadline_ms: int
    number: int
    callback: Callable[[], None] | None = msgspec.field(default=None)

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""
        self.callback = None


class ManualClock:
    """Implements `headrace.broker.clock.Clock` by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._timers: list[tuple[int, int, ManualTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Arrange `callback` for when `advance` reaches `deadline_ms`."""
        timer = ManualTimer(deadline_ms, next(self._numbers), callback)
        heapq.heappush(self._timers, (timer.deadline_ms, timer.number, timer))
        return timer

    def advance(self, ms: int) -> None:
        """Let time pass, running what is due in order of its deadline, each at its own time."""
        end = self._now_ms + ms
        while self._timers and self._timers[0][0] <= end:
            deadline_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, deadline_ms)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now_ms = end

    @property
    def pending(self) -> int:
        """How many timers are arranged and not called off."""
        return sum(timer.callback is not None for _, _, timer in self._timers)
