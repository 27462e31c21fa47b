"""What the log says of who came in, who or what was refused, and what was changed: a line each, few for many of a kind.

Every line has `principal`, `client` (the address), `reason` and, of a request, its id. Beyond `MOST_LINES` of one
event, address and kind within `WINDOW_MS` they are counted, and told in one line. Of changes only the same one again is
counted: nobody hides one among others.
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
"""Characters of what a client sent."""
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
    """Tells of what an administrator has to know. What many strangers can cause takes little room in log and memory."""

    def __init__(self, clock: Clock) -> None:
        """`clock` tells how long ago a kind was told first."""
        self._clock = clock
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def refused(self, principal: str, host: str, kind: str, what: str, **more: object) -> None:
        """Somebody asked for something that is not granted.

        Args:
            principal: who, such as `User:alice`.
            host: the address that they ask from.
            kind: an operation on a type of resource: what is counted together.
            what: the same in a sentence, with the name.
            more: fields of the line, such as the API and the request's id.
        """
        self._tell(_log.warning, REFUSED, principal, host, kind, what, more)

    def admitted(self, principal: str, host: str, by: str, **more: object) -> None:
        """Somebody has logged in, `by` a mechanism."""
        self._tell(_log.info, ADMITTED, principal, host, by, by, more)

    def login_refused(self, principal: str, host: str, by: str, why: str, **more: object) -> None:
        """Somebody has not; `principal` is who they say they are, as far as they have. `why` has no secret in it."""
        self._tell(_log.warning, LOGIN_REFUSED, principal, host, by, why, more)

    def handshake_failed(self, host: str, listener: str, reason: str) -> None:
        """Somebody's TLS handshake failed at a listener; strangers can have that happen as often as they like."""
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
        """Something is wrong with a batch; there are clients that send such ones as fast as they can.

        What is wrong of one kind with those for one topic is counted together.
        """
        topic = topic[:_MOST_TOLD]
        kind = f"{type(error).__name__} in {topic}"
        where = {"topic": topic, "partition": partition}
        self._tell(_log.warning, BATCH_REFUSED, principal, host, kind, str(error), where)

    def changed(self, principal: str, host: str, operation: str, what: str, **more: object) -> None:
        """Somebody has changed something that others depend on: topics, rules, users and the like."""
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
        """What is counted together; where there are too many of these, all that is beyond them, by its event."""
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
