"""Define the broker's clock interface, which tests can control.

Three times must not be mixed. The wall clock is for timestamps, stored data and signatures; it may jump. Ticks are for
deadlines, timeouts, pauses and rates; they only increase. The uptime also counts sleep of the machine.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

_NS_PER_MS = 1_000_000
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux, this clock also counts while the machine sleeps."""
_LOOK_MS = 250
_STOOD_STILL_MS = 2_000
"""A timer that is later than this indicates a paused process, not load."""


class Timer(Protocol):
    """A scheduled call that can be canceled."""

    def cancel(self) -> None:
        """Cancel the call. Do nothing if it has run."""


class Clock(Protocol):
    """The broker's source of time and timers."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch. It may jump, also backwards."""

    def ticks_ms(self) -> int:
        """Return monotonic milliseconds since an arbitrary start."""

    def uptime_ms(self) -> int:
        """Return the same, including sleep of the machine."""

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `ticks_ms()` has reached `deadline_ms`."""


async def pause(clock: Clock, duration_ms: int) -> None:
    """Wait for `duration_ms`; return at once for 0 or less."""
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
        """See `Clock`."""
        return time.time_ns() // _NS_PER_MS

    def ticks_ms(self) -> int:
        """Return milliseconds of CLOCK_MONOTONIC, which excludes sleep, so that sleep causes no timeouts."""
        return time.monotonic_ns() // _NS_PER_MS

    def uptime_ms(self) -> int:
        """See `Clock`."""
        return time.clock_gettime_ns(_BOOTTIME) // _NS_PER_MS

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Schedule `callback` on the running event loop."""
        delay = max(0, deadline_ms - self.ticks_ms()) / 1000
        # Use a separate context: a timer belongs to no request.
        return asyncio.get_running_loop().call_later(delay, callback, context=Context())


class RunningClock:
    """A clock that pauses with this process, for example after SIGSTOP or without CPU time.

    Group members' sessions use it, because they could not reach the paused server.
    """

    def __init__(self, machine: Clock) -> None:
        """Start on the running event loop; `machine` never pauses."""
        self._machine = machine
        self._seen_ms = machine.ticks_ms()
        self._stood_ms = 0
        self._look()

    def _look(self) -> None:
        self.ticks_ms()
        self._machine.call_at(self._seen_ms + _LOOK_MS, self._look)

    def now_ms(self) -> int:
        """See `Clock`."""
        return self._machine.now_ms()

    def ticks_ms(self) -> int:
        """Return milliseconds during which this process ran."""
        now_ms = self._machine.ticks_ms()
        passed_ms = now_ms - self._seen_ms
        self._seen_ms = now_ms
        if passed_ms > _STOOD_STILL_MS:
            self._stood_ms += passed_ms
        return now_ms - self._stood_ms

    def uptime_ms(self) -> int:
        """Return milliseconds since start, pauses included."""
        return self._machine.uptime_ms()

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """See `Clock`."""
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
