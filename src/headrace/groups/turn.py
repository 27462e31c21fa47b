"""One event's turn: collects effects and returns them in a safe order."""

from collections.abc import Hashable
from typing import NamedTuple

from headrace.groups.effects import Effect, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import ClassicRequest
from headrace.groups.model import GroupChange
from headrace.groups.timers import TimerKey
from headrace.machines.effects import CancelTimer, Now, Persist, Reply, SetTimer

Deadlines = dict[TimerKey, int]


class Room(NamedTuple):
    """Bytes that the server has left for all groups."""

    members: int
    """For members' metadata and assignments."""
    offsets: int
    """For committed offsets."""


GROUP_BYTES = 6_000
"""Charged for a group with members, and for one with offsets."""
UNBOUNDED = Room(1 << 62, 1 << 62)
_LARGEST_SHARE = 16
"""Fraction of free memory that one request may use, so that large members leave room for small ones."""


class Turn:
    """Collects changes, timers and replies of one event.

    `deadlines` are those of the group's timers (ticks).
    """

    __slots__ = ("_deadlines", "_replies", "_timers", "changes", "now_ms", "room", "ticks_ms")

    def __init__(self, now: Now, deadlines: Deadlines, room: Room = UNBOUNDED) -> None:
        self.room = room
        self.now_ms = now.wall_ms
        self.ticks_ms = now.ticks_ms
        self.changes: list[GroupChange] = []
        self._deadlines = deadlines
        self._timers: dict[TimerKey, SetTimer[TimerKey] | CancelTimer[TimerKey]] = {}
        self._replies: list[Reply[Result]] = []

    def save(self, *changes: GroupChange) -> None:
        """Make changes durable before any reply of this turn."""
        self.changes.extend(changes)

    def may_grow(self, members: int) -> bool:
        """Return whether members may grow by this many bytes on the server."""
        return members <= 0 or members <= self.room.members // _LARGEST_SHARE

    def set_timer(self, key: TimerKey, delay_ms: int) -> None:
        """Set or move a timer, `delay_ms` from now."""
        deadline = self.ticks_ms + max(delay_ms, 0)
        self._deadlines[key] = deadline
        self._timers[key] = SetTimer(key, deadline)

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer, if it is set."""
        if self._deadlines.pop(key, None) is not None:
            self._timers[key] = CancelTimer(key)

    def has_timer(self, key: TimerKey) -> bool:
        """Whether a timer is set."""
        return key in self._deadlines

    def take_timer(self, key: TimerKey) -> bool:
        """Return whether a fired timer is due, and remove it.

        It is not due if it was canceled or moved while the event waited. A moved timer is set again, so that a runner
        with a fast clock cannot lose it.
        """
        deadline = self._deadlines.get(key)
        if deadline is None:
            return False
        if deadline > self.ticks_ms:
            self._timers[key] = SetTimer(key, deadline)
            return False
        del self._deadlines[key]
        return True

    def reply(self, token: Hashable, result: Result) -> None:
        """Answer a request."""
        self._replies.append(Reply(token, result))

    def refuse(self, request: ClassicRequest, error: GroupError) -> None:
        """Reject a request with an error."""
        self._replies.append(Reply(request.token, refusal(request, error)))

    def effects(self) -> list[Effect]:
        """Return all effects in order: changes in one step, timers, replies."""
        persist: list[Effect] = [Persist(tuple(self.changes))] if self.changes else []
        return [*persist, *self._timers.values(), *self._replies]
