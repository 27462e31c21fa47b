"""Repeated log lines are counted, not written: the same line again within ten seconds, and floods of one event."""

import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

WINDOW_S: Final = 10.0
"""For how long a line that was written is only counted when it comes again."""
MOST_OF_ONE_EVENT: Final = 1_000
"""Different lines of one event that are written within that time; the rest are counted."""
_MOST_KNOWN: Final = 4_096
"""Lines that are remembered; while so many are, others are written however often they come."""
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
        self.held_back += 1
        self.last = now
        return False


class Repeats:
    """A processor of structlog that holds repeats back, and makes the lines that say how many there were."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing known; `clock` gives seconds, from anywhere, never going back."""
        self._clock = clock
        self._windows: dict[object, _Window] = {}
        self._over: list[tuple[str, Line]] = []
        # Reentrant: a finalizer may log while this thread logs.
        self._lock = threading.RLock()

    def __call__(self, logger: object, method: str, line: Line) -> Line:
        """Let a line pass, or count it and raise DropEvent."""
        name = line.get("event")
        details = tuple((field, repr(value)) for field, value in line.items() if field not in _DIFFERS_ANYWAY)
        with self._lock:
            again = self._window((method, details), method, dict(line))
            others = {"event": "lines of one event left out", "of": name}
            flood = self._window((method, repr(name)), method, others)
            now = self._clock()
            if (again is not None and not again.admits(1, now)) or (
                flood is not None and not flood.admits(MOST_OF_ONE_EVENT, now)
            ):
                raise structlog.DropEvent
        return line

    def due(self, *, all_of_them: bool = False) -> list[tuple[str, Line]]:
        """What was held back and not told yet, of windows that are over, or of all: level, and line with how often."""
        with self._lock:
            for key, window in tuple(self._windows.items()):
                if all_of_them or self._is_over(window):
                    self._end(key, window)
            lines, self._over = self._over, []
        return lines

    def _window(self, key: object, method: str, line: Line) -> _Window | None:
        """The window that is open for this key; None: too many are remembered."""
        window = self._windows.get(key)
        if window is not None and self._is_over(window):
            self._end(key, window)
            window = None
        if window is None and len(self._windows) < _MOST_KNOWN:
            window = self._windows[key] = _Window(method, line, self._clock())
        return window

    def _is_over(self, window: _Window) -> bool:
        return self._clock() - window.since >= WINDOW_S

    def _end(self, key: object, window: _Window) -> None:
        del self._windows[key]
        if window.held_back:
            line = {name: value for name, value in window.line.items() if name not in _DIFFERS_ANYWAY}
            now = self._clock()
            line |= {"repeated": window.held_back, "within_s": round(now - window.since)}
            # It is written when the time is over: what it tells of may be, too, for long.
            line["last_s_ago"] = round(now - window.last)
            self._over.append((window.method, line))
