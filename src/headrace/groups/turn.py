"""One event's turn: collects effects and returns them in a safe order."""

from collections.abc import Hashable
from typing import NamedTuple

from headrace.groups.consumers.events import ConsumerRequest
from headrace.groups.effects import Effect, Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import ClassicRequest
from headrace.groups.model import GroupChange
from headrace.groups.sharing.events import ShareRequest
from headrace.groups.timers import TimerKey
from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Command, Now, Persist, Reply


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
    """Collects changes, timers and replies of one event."""

    __slots__ = ("_commands", "_deadlines", "_replies", "changes", "now_ms", "room", "ticks_ms")

    def __init__(self, now: Now, deadlines: Deadlines[TimerKey], room: Room = UNBOUNDED) -> None:
        self.room = room
        self.now_ms = now.wall_ms
        self.ticks_ms = now.ticks_ms
        self.changes: list[GroupChange] = []
        self._deadlines = deadlines
        self._replies: list[Reply[Result]] = []
        self._commands: list[Command] = []

    def save(self, *changes: GroupChange) -> None:
        """Make changes durable before any reply of this turn."""
        self.changes.extend(changes)

    def may_grow(self, members: int) -> bool:
        """Return whether members may grow by this many bytes on the server."""
        return members <= 0 or members <= self.room.members // _LARGEST_SHARE

    def set_timer(self, key: TimerKey, delay_ms: int) -> None:
        """Set or move a timer, `delay_ms` from now."""
        self._deadlines.set(key, self.ticks_ms + max(delay_ms, 0))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer, if it is set."""
        self._deadlines.cancel(key)

    def has_timer(self, key: TimerKey) -> bool:
        """Whether a timer is set."""
        return key in self._deadlines

    def take_timer(self, key: TimerKey) -> bool:
        """Return whether a fired timer is due, and remove it."""
        return self._deadlines.take(key, self.ticks_ms)

    def reply(self, token: Hashable, result: Result) -> None:
        """Answer a request."""
        self._replies.append(Reply(token, result))

    def refuse(
        self, request: ClassicRequest | ConsumerRequest | ShareRequest, error: GroupError, why: str = ""
    ) -> None:
        """Reject a request with an error. Some results carry the reason."""
        self._replies.append(Reply(request.token, refusal(request, error, why)))

    def command(self, command: Command) -> None:
        """Have the runner perform this after the changes."""
        self._commands.append(command)

    def effects(self) -> list[Effect]:
        """Return all effects in order: changes in one step, timers, replies, commands."""
        persist: list[Effect] = [Persist(tuple(self.changes))] if self.changes else []
        return [*persist, *self._deadlines.effects(), *self._replies, *self._commands]
