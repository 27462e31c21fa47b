"""The target assignment of a share group. That of a large group is computed outside the event loop."""

from collections.abc import Collection, Mapping

from headrace.groups.consumers.events import Assign, Assigned
from headrace.groups.consumers.target import LARGEST_AT_ONCE, Targets
from headrace.groups.sharing import assignor
from headrace.groups.sharing.member import Sharer

AGAIN_MS = 1_000
"""Delay after a failed computation."""
_SHARE = 20
"""A group's target takes at most one part in this many of the event loop."""
_PER_MS = 1_000
"""Members, names and partitions whose target is computed in a millisecond."""


class Target:
    """Who should read what, and how it is computed."""

    def __init__(self) -> None:
        self.shares: assignor.Shares = {}
        self.epoch = 0
        """The group's epoch when the last computation began."""
        self._computed_ms: int | None = None
        """When the last one began or ended (ticks)."""
        self._computing: Assign | None = None
        self._size = 0
        """Members, subscribed names and partitions of the last one."""

    @property
    def is_computing(self) -> bool:
        """Whether a computation outside the event loop is in progress."""
        return self._computing is not None

    def due_ms(self, ticks_ms: int, interval_ms: int) -> int:
        """Return when the next one may begin (ticks). An interval of 0 leaves it to the size of the group."""
        if self._computed_ms is None:
            return ticks_ms
        return self._computed_ms + (interval_ms or self._size * _SHARE // _PER_MS)

    def begin(
        self, members: Mapping[str, Sharer], partitions: Mapping[str, int], epoch: int, ticks_ms: int
    ) -> Assign | None:
        """Begin a computation. Return it if it has to take place outside the event loop; otherwise it is done."""
        assign = Assign(
            assignor=assignor.NAME,
            members={member_id: member.topics for member_id, member in members.items()},
            partitions=dict(partitions),
            owners={},
            targets={},
            instances={},
            held={each: dict(self.shares.get(each, member.assigned)) for each, member in members.items()},
        )
        self.epoch, self._computed_ms = epoch, ticks_ms
        self._size = len(members) + sum(partitions.values()) + sum(len(member.topics) for member in members.values())
        if self._size > LARGEST_AT_ONCE:
            self._computing = assign
        else:
            self.shares = assignor.assign(assign.members, assign.partitions, assign.held)
        return self._computing

    def ends(self, event: Assigned, ticks_ms: int) -> bool:
        """Return whether the computation in progress has ended, and not that of an earlier state of the group."""
        if event.assign is not self._computing:
            return False
        self._computing, self._computed_ms = None, ticks_ms
        return True

    def apply(self, targets: Targets, members: Mapping[str, Sharer], topics: Collection[str]) -> None:
        """Apply a target as far as it is still valid: members and topics may have changed."""
        self.shares = {
            each: {
                name: tuple(indexes)
                for name, indexes in targets.get(each, {}).items()
                if name in topics and name in member.topics
            }
            for each, member in members.items()
        }

    def cancel(self) -> None:
        """Forget the computation in progress."""
        self._computing = None
