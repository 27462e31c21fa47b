"""Limits on connections of all listeners together."""

import contextlib
import resource
from collections import Counter

import structlog

from headrace.text.addresses import holder

RESERVED = 64
"""Descriptors kept free for Redis and files."""
_log = structlog.get_logger("headrace.broker.admin")


class ConnectionLimits:
    """`max.connections`, `max.connections.per.ip`, and the process's limit of descriptors."""

    def __init__(self, most: int, most_per_host: int) -> None:
        """Start with no connections."""
        self._most = most
        self._most_per_host = most_per_host
        self._count = 0
        self._by_holder: Counter[str] = Counter()
        self._refusing = False

    def admit(self, host: str) -> str:
        """Count a connection until `forget`. Return the reason to close it, if any."""
        whose = holder(host)
        self._count += 1
        self._by_holder[whose] += 1
        most = min(self._most, descriptors() - RESERVED)
        reason = ""
        if self._count > most:
            reason = f"more than {most} connections (max.connections, or the descriptors this process may have)"
        elif self._by_holder[whose] > self._most_per_host:
            reason = f"more than {self._most_per_host} connections from {whose} (max.connections.per.ip)"
        if reason and not self._refusing:
            # One line for consecutive rejections.
            _log.error("connections are refused", reason=reason)
        self._refusing = bool(reason)
        return reason

    def forget(self, host: str) -> None:
        """Remove a closed connection."""
        whose = holder(host)
        self._count -= 1
        self._by_holder[whose] -= 1
        if not self._by_holder[whose]:
            del self._by_holder[whose]


def descriptors() -> int:
    """Return the process's limit of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 31


def raise_descriptors() -> None:
    """Raise the limit of descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
