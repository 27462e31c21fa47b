"""Timers of a state machine, as its rules see them."""

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from headrace.machines.effects import CancelTimer, SetTimer

K = TypeVar("K", bound=Hashable)
"""Names of timers."""


class Deadlines(Mapping[K, int]):
    """Deadlines (ticks) of one machine's timers, with the effects of the present event."""

    __slots__ = ("_changed", "_set")

    def __init__(self, deadlines: Mapping[K, int] | None = None) -> None:
        self._set: dict[K, int] = dict(deadlines or {})
        self._changed: dict[K, SetTimer[K] | CancelTimer[K]] = {}

    def __getitem__(self, key: K) -> int:
        return self._set[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move a timer."""
        self._set[key] = deadline_ms
        self._changed[key] = SetTimer(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Cancel a timer, if it is set."""
        if self._set.pop(key, None) is not None:
            self._changed[key] = CancelTimer(key)

    def cancel_all(self) -> None:
        """Cancel every timer."""
        for key in tuple(self._set):
            self.cancel(key)

    def take(self, key: K, now_ms: int) -> bool:
        """Return whether a fired timer is due, and remove it.

        It is not due if it was canceled or moved while its event waited. A moved timer is set again, so that a runner
        with a fast clock cannot lose it.
        """
        deadline = self._set.get(key)
        if deadline is None:
            return False
        if deadline > now_ms:
            self._changed[key] = SetTimer(key, deadline)
            return False
        del self._set[key]
        return True

    def effects(self) -> list[SetTimer[K] | CancelTimer[K]]:
        """Return the changes since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())
