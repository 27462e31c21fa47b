"""What the log says of refusals: a line for each, and one for many where they are many."""

import structlog

from headrace.broker.clock import Clock

WINDOW_MS = 60_000
MOST_LINES = 10
"""Of one address and reason within `WINDOW_MS`; those beyond are counted, and told in one line."""
_MOST_WINDOWS = 1_024
_MOST_TOLD = 300
"""Characters of what a client sent."""
_log = structlog.get_logger("headrace.audit")


class _Window:
    __slots__ = ("count", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.count = 0
        self.until_ms = until_ms


class Audit:
    """Tells of refusals. What many strangers can cause takes little room in the log, and in memory."""

    def __init__(self, clock: Clock) -> None:
        """`clock` tells how long ago a reason was told first."""
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def refused(self, principal: str, host: str, reason: str, what: str, **more: object) -> None:
        """Somebody asked for something that is not granted.

        Args:
            principal: who, such as `User:alice`.
            host: the address that they ask from.
            reason: an operation on a type of resource: what is counted together.
            what: the same in a sentence, with the name.
            more: fields of the line, such as the API and the request's id.
        """
        ticks_ms = self._clock.ticks_ms()
        key = (host, reason)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MOST_WINDOWS:
                return
            window = self._windows[key] = _Window(ticks_ms + WINDOW_MS)
            self._clock.call_at(window.until_ms, lambda: self._end(key))
        window.count += 1
        if window.count <= MOST_LINES:
            told = what[:_MOST_TOLD]
            _log.warning("not authorized", principal=principal[:_MOST_TOLD], client=host, reason=told, **more)

    def _end(self, key: tuple[str, str]) -> None:
        beyond = self._windows.pop(key).count - MOST_LINES
        if beyond > 0:
            host, reason = key
            _log.warning("not authorized, more of the same", client=host, reason=reason, count=beyond)
