"""Tells the log of those whom HTTP requests bring a login for: once, and not for each of their requests."""

from headrace.broker.admin.audit import Audit
from headrace.broker.runtime.clock import Clock

AGAIN_MS = 600_000
"""Whoever has asked for nothing for so long is told of again."""
_MOST = 1_024


class Welcomes:
    """Who has been told of."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        """Nobody yet."""
        self._audit = audit
        self._clock = clock
        self._seen_ms: dict[tuple[str, str, str], int] = {}
        """The oldest first."""

    def admitted(self, principal: str, host: str, by: str) -> None:
        """A request came with a good login of a kind, from an address."""
        known = (principal, host, by)
        now_ms = self._clock.ticks_ms()
        before_ms = self._seen_ms.pop(known, None)
        self._seen_ms[known] = now_ms
        if len(self._seen_ms) > _MOST:
            del self._seen_ms[next(iter(self._seen_ms))]
        if before_ms is None or now_ms - before_ms >= AGAIN_MS:
            self._audit.admitted(principal, host, by)
