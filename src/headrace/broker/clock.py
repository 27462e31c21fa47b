"""Time as the broker sees it: one interface, so that tests can move it by hand.

There are two times, and mixing them up is a fault. The wall clock says when something happened: in timestamps, in what
is stored, in what others signed. It follows the machine's, which administrators, NTP and a resumed laptop set to and
fro. Ticks say how long something takes: deadlines, time-outs, pauses, rates. They only go forward, one a millisecond.
"""

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Protocol

_NS_PER_MS = 1_000_000


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

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Arrange `callback` on the running event loop."""
        delay = max(0, deadline_ms - self.ticks_ms()) / 1000
        # Not in the context of who arranged it: what a timer does is nobody's request.
        return asyncio.get_running_loop().call_later(delay, callback, context=Context())
