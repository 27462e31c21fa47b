"""Clocks that move when told to, so that tests of timers take no time."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

import msgspec

from headrace.broker.runtime.clock import SystemClock

_PATIENCE_S = 30
"""How long `MovableClock.advance` waits for the server's event loop."""
_SETTLE_S = 5
"""How long it waits for what the timers began, all of it writes of milliseconds."""
_STEPS = 100
_STEP_S = 0.5
"""How often, and how long each time, it waits for what those began in turn: a group writes one change after the other.
Not for ever, since what clients ask for meanwhile looks the same."""


def _ms(seconds: float, minutes: float, hours: float) -> int:
    return round((seconds + 60 * minutes + 3600 * hours) * 1000)


class ManualTimer(msgspec.Struct):
    """An arranged call; `cancel` calls it off."""

    deadline_ms: int
    number: int
    callback: Callable[[], None] | None = msgspec.field(default=None)

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""
        self.callback = None


class _Timers:
    """Arranged calls in the order of their deadlines, and of their arrangement where these are equal."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ManualTimer]] = []
        self._numbers = count()

    def add(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(deadline_ms, next(self._numbers), callback)
        heapq.heappush(self._heap, (timer.deadline_ms, timer.number, timer))
        return timer

    def first(self) -> int | None:
        """The deadline of the next call; None: there is none."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_first(self) -> None:
        """Make the next call. There must be one."""
        _, _, timer = heapq.heappop(self._heap)
        callback, timer.callback = timer.callback, None
        assert callback is not None
        callback()

    @property
    def pending(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._heap)


class ManualClock:
    """Implements `headrace.broker.runtime.clock.Clock` by hand. Until `step` both of its times are the same."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._ticks_ms = now_ms
        self._stepped_ms = self._slept_ms = 0
        self._timers = _Timers()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._ticks_ms + self._stepped_ms

    def ticks_ms(self) -> int:
        """Milliseconds that have passed, without steps."""
        return self._ticks_ms

    def uptime_ms(self) -> int:
        """Milliseconds that have passed, without steps, asleep or not."""
        return self._ticks_ms + self._slept_ms

    def sleep(self, ms: int) -> None:
        """Let the machine sleep: its ticks stand still, nothing runs."""
        self._stepped_ms += ms
        self._slept_ms += ms

    def stand_still(self, ms: int) -> None:
        """Let time pass in which nothing runs; what is due by then runs with the next `advance`."""
        self._ticks_ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock forward, or back; no time passes."""
        self._stepped_ms += ms

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Arrange `callback` for when `advance` reaches `deadline_ms`."""
        return self._timers.add(deadline_ms, callback)

    def advance(self, ms: int) -> None:
        """Let time pass, running what is due in order of its deadline, each at its own time."""
        end = self._ticks_ms + ms
        while (deadline_ms := self._timers.first()) is not None and deadline_ms <= end:
            self._ticks_ms = max(self._ticks_ms, deadline_ms)
            self._timers.run_first()
        self._ticks_ms = end

    @property
    def pending(self) -> int:
        """How many timers are arranged and not called off."""
        return self._timers.pending


class MovableClock(SystemClock):
    """The machine's clock, for a server in this process, that `advance` moves on from any thread.

    It goes on by itself as every clock does. `step` sets it, as an administrator or NTP sets a machine's.
    """

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
        """Milliseconds that have passed since some time, `advance` included and `step` not."""
        return super().ticks_ms() + self._ahead_ms

    def uptime_ms(self) -> int:
        """The same, with the time that the machine has slept."""
        return super().uptime_ms() + self._ahead_ms

    def step(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Set the wall clock forward, or back when negative. No time passes: no timer fires, no session ends by it.

        Timestamps, signatures, cursors and retention go by the wall clock.
        """
        self._stepped_ms += _ms(seconds, minutes, hours)

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> ManualTimer:
        """Arrange `callback` on the event loop that the clock is bound to; called from that loop only."""
        timer = self._timers.add(deadline_ms, callback)
        self._arm()
        return timer

    @property
    def ahead_ms(self) -> int:
        """How much time `advance` has let pass."""
        return self._ahead_ms

    @property
    def moved(self) -> bool:
        """Whether it shows another time than the machine's."""
        return bool(self._ahead_ms or self._stepped_ms)

    def reset(self) -> None:
        """Go back to the machine's time; raises RuntimeError while a server goes by this clock."""
        if self._loop is not None:
            raise RuntimeError("stop the server first: time does not go back for one that runs")
        self._ahead_ms = self._stepped_ms = 0

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Work for this event loop from now on; timers of an earlier one are forgotten. None: for no loop."""
        self._loop = loop
        self._timers = _Timers()
        self._wake = None

    def advance(self, seconds: float = 0, *, minutes: float = 0, hours: float = 0) -> None:
        """Let time pass: once this returns, every timer that is due has fired, in order, each at its own time.

        What they set going has been done, too, groups are stored as they now are; only the trimming of logs, which
        is checked every five minutes of that time, may come a moment later.

        Raises:
            ValueError: less than nothing: time does not go back.
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
            # What has been done may have arranged calls for a time that has passed by now.
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
        """Have the event loop wake us at the first deadline: one timer of the loop stands for all of ours."""
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
