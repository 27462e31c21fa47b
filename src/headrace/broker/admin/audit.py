"""Audit log: logins, rejections and changes, one line each, with a limit per kind.

Lines have `principal`, `client` (the address), `reason` and a request id if any. More than `MOST_LINES` of one event,
address and kind within `WINDOW_MS` are counted and logged in one line. Of changes, only identical ones are counted, so
that none is hidden among others.
"""

from collections.abc import Callable

import structlog

from headrace.broker.runtime.clock import Clock
from headrace.security.access.principal import ANONYMOUS
from headrace.text.addresses import holder

WINDOW_MS = 60_000
MOST_LINES = 10
_MOST_WINDOWS = 1_024
_MANY = "many"
_MOST_TOLD = 300
"""Maximum characters of client data."""
REFUSED, ADMITTED, LOGIN_REFUSED, CHANGED = "not authorized", "logged in", "login refused", "changed"
HANDSHAKE_FAILED, BATCH_REFUSED = "handshake failed", "batch refused"
"""Events."""
_log = structlog.get_logger("headrace.broker.admin.audit")


class _Window:
    __slots__ = ("count", "shared", "until_ms")

    def __init__(self, until_ms: int, *, shared: bool) -> None:
        self.count = 0
        self.until_ms = until_ms
        self.shared = shared


class Audit:
    """Writes the audit log. Unauthenticated clients cannot fill log or memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def refused(self, principal: str, host: str, kind: str, what: str, **more: object) -> None:
        """Log an unauthorized request.

        `kind` is an operation on a type of resource, `what` also has the name.
        """
        self._tell(_log.warning, REFUSED, principal, host, kind, what, more)

    def admitted(self, principal: str, host: str, by: str, **more: object) -> None:
        """Log a login by a mechanism."""
        self._tell(_log.info, ADMITTED, principal, host, by, by, more)

    def login_refused(self, principal: str, host: str, by: str, why: str, **more: object) -> None:
        """Log a failed login. `principal` is the claimed one. `why` must not have secrets."""
        self._tell(_log.warning, LOGIN_REFUSED, principal, host, by, why, more)

    def handshake_failed(self, host: str, listener: str, reason: str) -> None:
        """Log a failed TLS handshake. Any client can cause these."""
        self._tell(
            _log.warning,
            HANDSHAKE_FAILED,
            str(ANONYMOUS),
            host,
            f"{listener}: {reason}",
            reason,
            {"listener": listener},
        )

    def batch_refused(self, principal: str, host: str, topic: str, partition: int, error: Exception) -> None:
        """Log an invalid batch.

        Errors of one kind and topic are counted together: some clients retry at full speed.
        """
        topic = topic[:_MOST_TOLD]
        kind = f"{type(error).__name__} in {topic}"
        where = {"topic": topic, "partition": partition}
        self._tell(_log.warning, BATCH_REFUSED, principal, host, kind, str(error), where)

    def changed(self, principal: str, host: str, operation: str, what: str, **more: object) -> None:
        """Log a change of topics, ACLs, users and the like."""
        self._tell(_log.info, CHANGED, principal, host, what[:_MOST_TOLD], what, {"operation": operation, **more})

    def _tell(
        self,
        log: Callable[..., object],
        event: str,
        principal: str,
        host: str,
        kind: str,
        reason: str,
        more: dict[str, object],
    ) -> None:
        window = self._window(event, host, kind)
        window.count += 1
        if window.count <= MOST_LINES or (event == CHANGED and window.shared):
            log(event, principal=principal[:_MOST_TOLD], client=host, reason=reason[:_MOST_TOLD], **more)

    def _window(self, event: str, host: str, kind: str) -> _Window:
        """Return the counter of a kind. Above the limit, an event has one for all."""
        key = (event, holder(host), kind)
        window = self._windows.get(key)
        shared = window is None and len(self._windows) >= _MOST_WINDOWS
        if shared:
            key = (event, _MANY, _MANY)
            window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(self._clock.ticks_ms() + WINDOW_MS, shared=shared)
            self._clock.call_at(window.until_ms, lambda: self._end(key))
        return window

    def _end(self, key: tuple[str, str, str]) -> None:
        window = self._windows.pop(key)
        event, host, kind = key
        beyond = window.count - MOST_LINES
        if beyond > 0 and not (event == CHANGED and window.shared):
            _log.warning(f"{event}, more of the same", client=host, reason=kind, count=beyond)
