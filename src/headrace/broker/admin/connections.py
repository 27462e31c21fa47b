"""How many connections a server takes, of all listeners together."""

import contextlib
import resource
from collections import Counter

import structlog

from headrace.text.addresses import holder

RESERVED = 64
"""Descriptors that are kept free of clients: for Redis, and for files."""
_log = structlog.get_logger("headrace.broker.admin")


class ConnectionLimits:
    """`max.connections` and `max.connections.per.ip`, and the descriptors that the process may have."""

    def __init__(self, most: int, most_per_host: int) -> None:
        """Nobody is connected.

        Args:
            most: connections at a time.
            most_per_host: of these, from one address.
        """
        self._most = most
        self._most_per_host = most_per_host
        self._count = 0
        self._by_holder: Counter[str] = Counter()
        self._refusing = False

    def admit(self, host: str) -> str:
        """Count a connection from an address, until `forget`; why it is to be closed at once, empty: it is not."""
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
            # One line for all that are refused in a row.
            _log.error("connections are refused", reason=reason)
        self._refusing = bool(reason)
        return reason

    def forget(self, host: str) -> None:
        """A connection that was counted is gone."""
        whose = holder(host)
        self._count -= 1
        self._by_holder[whose] -= 1
        if not self._by_holder[whose]:
            del self._by_holder[whose]


def descriptors() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 31


def raise_descriptors() -> None:
    """Let this process have as many descriptors as it may ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
