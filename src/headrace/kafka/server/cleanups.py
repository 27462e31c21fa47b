"""What ends together with a connection, such as the share sessions of its client.

A lost connection never removes a member of a group. It ends only what the client must be connected for.
"""

from collections.abc import Callable, Hashable

import structlog

_log = structlog.get_logger("headrace.kafka.server")


class Cleanups:
    """Functions that a channel calls once, when its connection is lost."""

    __slots__ = ("_by_key", "_over")

    def __init__(self) -> None:
        self._by_key: dict[Hashable, Callable[[], None]] = {}
        self._over = False

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, key: Hashable, cleanup: Callable[[], None]) -> None:
        """Call `cleanup` when the connection is lost; at once if it is lost already. Replaces that of the same key."""
        if self._over:
            _call(cleanup)
        else:
            self._by_key[key] = cleanup

    def discard(self, key: Hashable) -> None:
        """Forget a cleanup. Do nothing if there is none."""
        self._by_key.pop(key, None)

    def run(self) -> None:
        """Call all of them, in the order in which they were added. A second call does nothing."""
        self._over = True
        while self._by_key:
            _call(self._by_key.pop(next(iter(self._by_key))))


def _call(cleanup: Callable[[], None]) -> None:
    try:
        cleanup()
    except Exception:
        # The other cleanups, and the rest of the connection's end, must not be skipped.
        _log.exception("cleanup after a lost connection failed")
