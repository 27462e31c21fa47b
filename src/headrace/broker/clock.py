"""Time as the broker sees it: one interface, so that tests can move it by hand."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that has been arranged and can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has run."""


class Clock(Protocol):
    """Where the broker gets the time and its timers from."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Record timestamps and retention use it."""

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` once `now_ms()` has reached `deadline_ms`."""


class SystemClock:
    """The machine's clock and the event loop's timers.

    The wall clock is read once; from then on the monotonic clock moves it, so that a clock set back
    by an administrator never stops a session time-out.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return int((time.monotonic() + self._offset) * 1000)

    def call_at(self, deadline_ms: int, callback: Callable[[], None]) -> Timer:
        """Arrange `callback` on the running event loop."""
        delay = max(0, deadline_ms - self.now_ms()) / 1000
        return asyncio.get_running_loop().call_later(delay, callback)
