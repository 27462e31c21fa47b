"""What all groups of a server hold together, and what is left of it for what members and commits add.

One group's members are bounded by `headrace.group.max.bytes`, but a client can make thousands of groups and leave them
behind: their members stay until the session timeout that the client chose. The totals hold over all virtual clusters.
A request that does not fit is refused, and nothing that a client has is taken away: an evicted member would lose its
partitions, an evicted offset its position.
"""

import structlog

from headrace.groups.turn import Room

_SHORT = 8
"""A total is logged as short when this part of it is left, or less."""
_log = structlog.get_logger("headrace.broker.coordinator")


class Total:
    """One bound."""

    __slots__ = ("_setting", "_short", "limit", "used")

    def __init__(self, setting: str, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._setting = setting
        self._short = False

    @property
    def left(self) -> int:
        """Bytes that may still be added; never below 0."""
        return max(self.limit - self.used, 0)

    def add(self, size: int) -> None:
        """Count bytes more, or less. Running short is logged once, until there is room again."""
        self.used += size
        short = self.left <= self.limit // _SHORT
        if short and not self._short:
            _log.error("groups use up their memory", setting=self._setting, used=self.used, limit=self.limit)
        self._short = short


class GroupMemory:
    """The totals of one server."""

    def __init__(self, members: int = 256 << 20, offsets: int = 512 << 20) -> None:
        """Count nothing yet.

        Args:
            members: bytes of all members, `headrace.groups.max.bytes`.
            offsets: bytes of all committed offsets, `headrace.offsets.max.bytes`.
        """
        self.members = Total("headrace.groups.max.bytes", members)
        self.offsets = Total("headrace.offsets.max.bytes", offsets)

    @property
    def room(self) -> Room:
        """What is left."""
        return Room(self.members.left, self.offsets.left)


class Held:
    """What one group holds of it."""

    __slots__ = ("_members", "_memory", "_offsets")

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self._members = self._offsets = 0

    def now(self, members: int, offsets: int) -> None:
        """Count what the group holds now, in place of what it held before."""
        if members != self._members:
            self._memory.members.add(members - self._members)
            self._members = members
        if offsets != self._offsets:
            self._memory.offsets.add(offsets - self._offsets)
            self._offsets = offsets
