"""Clocks that tests advance, so that tests of timers take no time."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

import msgspec

from headrace.broker.runtime.clock import SystemClock

_PATIENCE_S = 30
"""Seconds that `MovableClock.advance` waits for the server's event loop."""
_SETTLE_S = 5
"""Seconds that it waits for tasks started by the timers, which take milliseconds."""
_STEPS = 100
_STEP_S = 0.5
"""Seconds that it waits, each time, for their follow-up tasks: a group stores one change after another.

The number of waits is limited, because requests of clients start tasks too.
"""


def _ms(seconds: float, minutes: float, hours: float) -> int:
    return round((seconds + 60 * minutes + 3600 * hours) * 1000)


class ManualTimer(msgspec.Struct):
    """A scheduled call."""

    deadline_ms: int
    number: int
    callback: Callable[[], None] | None = msgspec.field(default=None)

    def cancel(self) -> None:
        """Cancel the call; no effect once it has run."""
        self.callback = None


class _Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ManualTimer]] = []
        self._numbers = count()

    def add(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(deadline_ms, next(self._numbers), callback)
        heapq.heappush(self._heap, (timer.deadline_ms, timer.number, timer))
        return timer

    def first(self) -> int | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_first(self) -> None:
        _, _, timer = heapq.heappop(self._heap)
        callback, timer.callback = timer.callback, None
        assert callback is not None
        callback()

    @property
    def pending(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._heap)


class ManualClock:
    """A manual `headrace.broker.runtime.clock.Clock`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._ticks_ms = now_ms
        self._stepped_ms = self._slept_ms = 0
        self._timers = _Timers()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._ticks_ms + self._stepped_ms

    def ticks_ms(self) -> int:
        """Milliseconds passed, without steps."""
        return self._ticks_ms

    def uptime_ms(self) -> int:
        """Milliseconds passed, without steps, with sleep."""
        return self._ticks_ms + self._slept_ms

    def sleep(self, ms: int) -> None:
        """Simulate sleep of the machine: ticks stop, no timer runs."""
        self._stepped_ms += ms
        self._slept_ms += ms

    def stand_still(self, ms: int) -> None:
        """Let time pass; due timers run with the next `advance`."""
        self._ticks_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._stepped_ms += ms

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Schedule a call."""
        return self._timers.add(deadline_ms, callback)

    def advance(self, ms: int) -> None:
        """Let time pass, running due timers in order, each at its own time."""
        end = self._ticks_ms + ms
        while (deadline_ms := self._timers.first()) is not None and deadline_ms <= end:
            self._ticks_ms = max(self._ticks_ms, deadline_ms)
            self._timers.run_first()
        self._ticks_ms = end

    @property
    def pending(self) -> int:
        """Number of scheduled timers."""
        return self._timers.pending


class MovableClock(SystemClock):
    """The system clock, which tests can advance from any thread. For a server in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ms = 0
        self._stepped_ms = 0
        self._timers = _Timers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: tuple[int, asyncio.TimerHandle] | None = None

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return super().now_ms() + self._ahead_ms + self._stepped_ms

    def ticks_ms(self) -> int:
        """Milliseconds passed, including `advance` but not `step`."""
        return super().ticks_ms() + self._ahead_ms

    def uptime_ms(self) -> int:
        """The same, including sleep of the machine."""
        return super().uptime_ms() + self._ahead_ms

    def step(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Set the wall clock forward, or back if negative. No timer fires and no session expires."""
        self._stepped_ms += _ms(seconds, minutes, hours)

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Schedule `callback` on the bound event loop; call it only on that loop."""
        timer = self._timers.add(deadline_ms, callback)
        self._arm()
        return timer

    @property
    def ahead_ms(self) -> int:
        """Milliseconds added by `advance`."""
        return self._ahead_ms

    @property
    def moved(self) -> bool:
        """Whether it differs from the system clock."""
        return bool(self._ahead_ms or self._stepped_ms)

    def reset(self) -> None:
        """Return to the system's time. Raises RuntimeError while a server uses the clock."""
        if self._loop is not None:
            raise RuntimeError("stop the server first: time does not go back for one that runs")
        self._ahead_ms = self._stepped_ms = 0

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Use this event loop from now on; timers of an earlier one are dropped."""
        self._loop = loop
        self._timers = _Timers()
        self._wake = None

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Let time pass. On return, every due timer has fired, in order, each at its own time.

        The tasks that they started have ended, and groups are stored. Only trimming of logs, checked every five
        minutes, may end later.

        Raises:
            ValueError: negative time.
        """
        ms = _ms(seconds, minutes, hours)
        if ms < 0:
            raise ValueError(f"time passes forward only, not by {ms} ms; step sets the wall clock back")
        if self._loop is None:
            self._ahead_ms += ms
        else:
            asyncio.run_coroutine_threadsafe(self._pass_and_settle(ms), self._loop).result(_PATIENCE_S)

    async def _pass_and_settle(self, ms: int) -> None:
        known = asyncio.all_tasks()
        self._pass(ms)
        patience_s: float = _SETTLE_S
        for _ in range(_STEPS):
            begun = asyncio.all_tasks() - known
            if not begun:
                break
            await asyncio.wait(begun, timeout=patience_s)
            known |= begun
            patience_s = _STEP_S
            # These tasks may have scheduled due calls.
            self._pass(0)

    def _pass(self, ms: int) -> None:
        end = self._ahead_ms + ms
        try:
            while (deadline_ms := self._timers.first()) is not None:
                left = deadline_ms - self.ticks_ms()
                if self._ahead_ms + left > end:
                    break
                self._ahead_ms += max(0, left)
                self._timers.run_first()
        finally:
            self._ahead_ms = max(self._ahead_ms, end)
            self._arm()

    def _arm(self) -> None:
        first = self._timers.first()
        if self._wake is not None:
            if self._wake[0] == first:
                return
            self._wake[1].cancel()
            self._wake = None
        if first is not None:
            assert self._loop is not None, "bind the clock to an event loop first"
            delay = max(0, first - self.ticks_ms()) / 1000
            self._wake = first, self._loop.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._wake = None
        self._pass(0)
