"""Time as the broker sees it: one interface, so that tests can move it by hand.

There are three times, and mixing them up is a fault. The wall clock says when something happened: in timestamps, in
what is stored, in what others signed. It follows the machine's, which administrators, NTP and a resumed laptop set to
and fro. Ticks say how long something takes: deadlines, time-outs, pauses, rates. They only go forward, one a
millisecond. The uptime counts the time that the machine has slept, too: it says what others may have done meanwhile.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

_NS_PER_MS = 1_000_000
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that goes on while the machine sleeps."""
_LOOK_MS = 250
_STOOD_STILL_MS = 2_000
"""A timer that is later than this was not late for work."""


class Timer(Protocol):
    """A call that has been arranged and can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""


class Clock(Protocol):
    """Where the broker gets the times and its timers from."""

    def now_ms(self) -> int:
        """The wall clock: milliseconds since the epoch. It may go back, and may jump."""

    def ticks_ms(self) -> int:
        """Milliseconds since some time in the past, without jumps; never going back."""

    def uptime_ms(self) -> int:
        """The same, with those in which the machine slept."""

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `ticks_ms()` has reached `deadline_ms`."""


async def pause(clock: Clock, duration_ms: int) -> None:
    """Wait for so long; 0 or less: not at all."""
    if duration_ms <= 0:
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    timer = clock.call_at(clock.ticks_ms() + duration_ms, end)
    try:
        await over
    finally:
        timer.cancel()


class SystemClock:
    """The machine's clocks and the event loop's timers."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // _NS_PER_MS

    def ticks_ms(self) -> int:
        """Milliseconds of CLOCK_MONOTONIC: a machine that sleeps does not count, and nobody times out by it."""
        return time.monotonic_ns() // _NS_PER_MS

    def uptime_ms(self) -> int:
        """Milliseconds since the machine was started."""
        return time.clock_gettime_ns(_BOOTTIME) // _NS_PER_MS

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Arrange `callback` on the running event loop."""
        delay = max(0, deadline_ms - self.ticks_ms()) / 1000
        # Not in the context of who arranged it: what a timer does is nobody's request.
        return asyncio.get_running_loop().call_later(delay, callback, context=Context())


class RunningClock:
    """A clock whose ticks stand still while this process does: stopped (SIGSTOP), or without a processor for seconds.

    Members of groups are waited for by it: they could not reach this server then.
    """

    def __init__(self, machine: Clock) -> None:
        """Begin, on the running event loop; `machine` goes on always."""
        self._machine = machine
        self._seen_ms = machine.ticks_ms()
        self._stood_ms = 0
        self._look()

    def _look(self) -> None:
        self.ticks_ms()
        self._machine.call_at(self._seen_ms + _LOOK_MS, self._look)

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._machine.now_ms()

    def ticks_ms(self) -> int:
        """Milliseconds in which this process ran."""
        now_ms = self._machine.ticks_ms()
        passed_ms = now_ms - self._seen_ms
        self._seen_ms = now_ms
        if passed_ms > _STOOD_STILL_MS:
            self._stood_ms += passed_ms
        return now_ms - self._stood_ms

    def uptime_ms(self) -> int:
        """Milliseconds that have passed, whoever stood still."""
        return self._machine.uptime_ms()

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Arrange `callback` for when it has run for so long."""
        return _RunningTimer(self, self._machine, deadline_ms, callback)


class _RunningTimer:
    __slots__ = ("_callback", "_clock", "_deadline_ms", "_machine", "_timer")

    def __init__(self, clock: RunningClock, machine: Clock, deadline_ms: int, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._machine = machine
        self._deadline_ms = deadline_ms
        self._callback = callback
        self._timer = self._arranged()

    def _arranged(self) -> Timer:
        left_ms = self._deadline_ms - self._clock.ticks_ms()
        return self._machine.call_at(self._machine.ticks_ms() + left_ms, self._run)

    def _run(self) -> None:
        if self._clock.ticks_ms() < self._deadline_ms:
            self._timer = self._arranged()
        else:
            self._callback()

    def cancel(self) -> None:
        self._timer.cancel()
