"""The timers of one group: put off while its members could not reach their coordinator."""

from collections.abc import Callable
from typing import Protocol

from headrace.broker.clock import Clock, Timer
from headrace.groups.timers import TimerKey

_UNCERTAIN_MS = 250
"""How long a timer is put off where this server may coordinate the group no more."""
_MOST_GRACE_MS = 60_000
"""How long it waits at most when that is over: by default clients give a sign of life every 15 seconds or sooner."""


class Doubting(Protocol):
    """Who coordinates the group, as far as timers must know it."""

    clock: Clock
    doubted_ms: int | None
    """When it was last in doubt about its groups (ticks); None: never."""

    def in_doubt(self) -> bool:
        """Whether somebody may have taken them over by now."""


class GroupTimers:
    """Which timers are set."""

    def __init__(self, table: Doubting, fired: Callable[[TimerKey], None]) -> None:
        """None is. `fired` is called with each one that is due, and is not set any more."""
        self._table = table
        self._told = fired
        self._timers: dict[TimerKey, Timer] = {}

    def __bool__(self) -> bool:
        return bool(self._timers)

    def set(self, key: TimerKey, deadline_ms: int) -> None:
        """Set or move a timer; `deadline_ms` is in ticks."""
        self.cancel(key)
        clock = self._table.clock
        grace_ms = min(deadline_ms - clock.ticks_ms(), _MOST_GRACE_MS)
        self._timers[key] = clock.call_at(deadline_ms, lambda: self._fired(key, grace_ms))

    def cancel(self, key: TimerKey) -> None:
        """Call a timer off; does nothing when it is not set."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self) -> None:
        """Call every timer off."""
        for key in tuple(self._timers):
            self.cancel(key)

    def _fired(self, key: TimerKey, grace_ms: int, waited: bool = False) -> None:
        table, now_ms = self._table, self._table.clock.ticks_ms()
        if table.in_doubt():
            # Its members may have gone on elsewhere, while this server stood still or Redis does not answer.
            again_ms, waited = now_ms + _UNCERTAIN_MS, False
        elif table.doubted_ms is not None and (again_ms := table.doubted_ms + grace_ms) > now_ms and not waited:
            # They were refused until then, and get as long to be heard as they had; once, or they might stay for ever.
            waited = True
        else:
            del self._timers[key]
            self._told(key)
            return
        self._timers[key] = table.clock.call_at(again_ms, lambda: self._fired(key, grace_ms, waited))
