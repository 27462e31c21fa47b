"""Repeated log lines are counted, not written: the same line again within ten seconds, and floods of one event.

A flood has a burst that is written, and then a rate. One client address (of IPv6 one network) has a share of each
event, so that it neither fills the disk nor hides the lines that others cause.
"""

import threading
import time
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, Final, NamedTuple

import structlog

from headrace.text.addresses import holder

WINDOW_S: Final = 10.0
"""For how long a line that was written is only counted when it comes again."""


class Allowance(NamedTuple):
    """Different lines of one event that are written."""

    burst: int
    """At once."""
    refill: int
    """And of a flood that goes on, in each window."""


OF_ONE_EVENT: Final = Allowance(1_000, 100)
OF_ONE_CLIENT: Final = Allowance(500, 20)
_MOST_KNOWN: Final = 4_096
"""Lines that are remembered; while so many are, others are written however often they come, as far as their event and
client have an allowance."""
_MOST_CLIENTS: Final = 1_024
"""Clients that are told apart, of all events together; the others share one allowance of each event."""
_MOST_EVENTS: Final = 1_024
"""The same for events, whose names are the code's: libraries may log anything."""
_OTHERS: Final = "others"
_DIFFERS_ANYWAY: Final = frozenset({"request", "exc_info", "stack_info"})
"""Fields that tell two occurrences of the same thing apart."""

Line = MutableMapping[str, Any]


class _Window:
    """What came of one line, or of one event, since the first of it."""

    __slots__ = ("held_back", "last", "line", "method", "passed", "since")

    def __init__(self, method: str, line: Line, since: float) -> None:
        self.method = method
        self.line = line
        self.since = since
        self.passed = 0
        self.held_back = 0
        self.last = since

    def admits(self, most: int, now: float) -> bool:
        """Count one more, and say whether it is among the first `most`."""
        if self.passed < most:
            self.passed += 1
            return True
        self.hold_back(now)
        return False

    def hold_back(self, now: float) -> None:
        """Count one that is not written."""
        self.held_back += 1
        self.last = now


class Repeats:
    """A processor of structlog that holds repeats back, and makes the lines that say how many there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing known; `clock` gives seconds, from anywhere, never going back."""
        self._clock = clock
        self._lines: dict[Hashable, _Window] = {}
        # Each has its own bound: lines that a client makes up leave the count of floods in place.
        self._events: dict[Hashable, _Window] = {}
        self._clients: dict[Hashable, _Window] = {}
        self._over: list[tuple[str, Line]] = []
        # Reentrant: a finalizer may log while this thread logs.
        self._lock = threading.RLock()

    def __call__(self, logger: object, method: str, line: Line) -> Line:
        """Let a line pass, or count it and raise DropEvent."""
        details = tuple((field, repr(value)) for field, value in line.items() if field not in _DIFFERS_ANYWAY)
        with self._lock:
            if not self._passes(method, details, line, self._clock()):
                raise structlog.DropEvent
        return line

    def _passes(self, method: str, details: Hashable, line: Line, now: float) -> bool:
        again = self._known(self._lines, (method, details), now)
        if again is not None:
            return again.admits(1, now)
        event = self._flood(method, line, now)
        client = self._flood_of_client(method, line, now)
        if client is not None and not client.admits(OF_ONE_CLIENT.burst, now):
            return False
        if not event.admits(OF_ONE_EVENT.burst, now):
            return False
        # Only now: what is held back anyway needs no place.
        if len(self._lines) < _MOST_KNOWN:
            self._lines[method, details] = window = _Window(method, dict(line), now)
            window.passed = 1
        return True

    def _flood(self, method: str, line: Line, now: float) -> _Window:
        """The window of a line's event."""
        name = line.get("event")
        key: tuple[str, str] = (method, repr(name))
        if key not in self._events and len(self._events) >= _MOST_EVENTS:
            key, name = (method, _OTHERS), _OTHERS
        window = self._known(self._events, key, now)
        if window is None:
            window = self._events[key] = _Window(method, {"event": "lines of one event left out", "of": name}, now)
        return window

    def _flood_of_client(self, method: str, line: Line, now: float) -> _Window | None:
        """The window of a line's event and client; None: no client caused it."""
        if not isinstance(client := line.get("client"), str):
            return None
        name, who = line.get("event"), holder(client)
        key = (method, repr(name), who)
        if key not in self._clients and len(self._clients) >= _MOST_CLIENTS:
            who = _OTHERS
            key = (method, repr(name), who)
        window = self._known(self._clients, key, now)
        if window is None:
            left_out = {"event": "lines of one client left out", "of": name, "client": who}
            window = self._clients[key] = _Window(method, left_out, now)
        return window

    def due(self, *, all_of_them: bool = False) -> list[tuple[str, Line]]:
        """What was held back and not told yet, of windows that are over, or of all: level, and line with how often."""
        with self._lock:
            now = self._clock()
            for windows in (self._lines, self._events, self._clients):
                for key, window in tuple(windows.items()):
                    if all_of_them or _is_over(window, now):
                        self._end(windows, key, window, now)
            lines, self._over = self._over, []
        return lines

    def _known(self, windows: dict[Hashable, _Window], key: Hashable, now: float) -> _Window | None:
        """The window that is open for this key."""
        window = windows.get(key)
        if window is None or not _is_over(window, now):
            return window
        self._end(windows, key, window, now)
        return windows.get(key)

    def _end(self, windows: dict[Hashable, _Window], key: Hashable, window: _Window, now: float) -> None:
        """End a window. That of a flood goes on, with so many more that may pass, until all of its burst may."""
        if window.held_back:
            line = {name: value for name, value in window.line.items() if name not in _DIFFERS_ANYWAY}
            line |= {"repeated": window.held_back, "within_s": round(now - window.since)}
            # It is written when the time is over: what it tells of may be, too, for long.
            line["last_s_ago"] = round(now - window.last)
            self._over.append((window.method, line))
        refill = {id(self._events): OF_ONE_EVENT.refill, id(self._clients): OF_ONE_CLIENT.refill}.get(id(windows))
        if refill is not None:
            window.passed -= refill * int((now - window.since) // WINDOW_S or 1)
        if refill is None or window.passed <= 0:
            del windows[key]
        else:
            window.since, window.held_back = now, 0


def _is_over(window: _Window, now: float) -> bool:
    return now - window.since >= WINDOW_S
