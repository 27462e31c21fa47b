"""The target assignment of a share group. That of a large group is computed outside the event loop."""

from collections.abc import Collection, Mapping

from headrace.groups.consumers.events import Assign, Assigned
from headrace.groups.consumers.target import LARGEST_AT_ONCE, Targets, pause_ms
from headrace.groups.sharing import assignor
from headrace.groups.sharing.member import Sharer


def shares_of(assign: Assign) -> assignor.Shares:
    """Compute a target. All members of a share group have an ID."""
    members = {each: topics for each, topics in assign.members.items() if isinstance(each, str)}
    return assignor.assign(members, assign.partitions, assign.held)


class Target:
    """The target assignment and its computation."""

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
        """Return when the next one may begin (ticks). See `pause_ms`."""
        if self._computed_ms is None:
            return ticks_ms
        return self._computed_ms + pause_ms(self._size, interval_ms)

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
            self.shares = shares_of(assign)
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
