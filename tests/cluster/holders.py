"""Check that no partition of a group has two holders.

A member holds a partition from its assignment callback to its revocation callback. A coordinator may give a partition
to another member only after the holder has given it up, or was silent for its session timeout. No fault of the rounds
lasts that long, so two holders are an anomaly.
"""

import threading
from collections.abc import Iterable


class Holders:
    """Who holds each partition of a topic in a group."""

    def __init__(self, group: str) -> None:
        """No partition has a holder."""
        self.group = group
        self.grants = 0
        """How often a partition was assigned."""
        self._lock = threading.Lock()
        self._holders: dict[int, set[str]] = {}
        self._found: list[str] = []

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        """A member was given these partitions, besides those that it has."""
        with self._lock:
            for partition in partitions:
                others = self._holders.setdefault(partition, set())
                if others - {member}:
                    self._found.append(f"{self.group}: {partition} is held by {sorted(others)} and {member}")
                others.add(member)
                self.grants += 1

    def given_up(self, member: str, partitions: Iterable[int]) -> None:
        """A member no longer reads these partitions."""
        with self._lock:
            for partition in partitions:
                self._holders.get(partition, set()).discard(member)

    def gone(self, member: str) -> None:
        """A member is closed."""
        with self._lock:
            for holders in self._holders.values():
                holders.discard(member)

    def check(self) -> None:
        """Raises AssertionError with the partitions that had two holders."""
        with self._lock:
            assert not self._found, f"{len(self._found)} partitions with two holders: {'; '.join(self._found[:10])}"
