"""The event loop that a server runs on."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from headrace.metrics.counters import TICKS, Durations

_EVERY_S = 0.1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed; None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return uvloop.new_event_loop


class DelayWatch:
    """Measures how late the running loop comes to a timer, ten times a second."""

    def __init__(self, delays: Durations) -> None:
        """Start at once; `delays` is increased until `stop`."""
        self._delays = delays
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._arrange()

    def _arrange(self) -> None:
        self._due = perf_counter() + _EVERY_S
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def _look(self) -> None:
        self._delays.add(int(max(0.0, perf_counter() - self._due) * TICKS))
        self._arrange()

    def stop(self) -> None:
        """Stop measuring."""
        self._timer.cancel()
