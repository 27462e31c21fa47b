"""One balanced section of a group: its topic's partitions, assigned to instances.

A pure state machine that answers each request at once. `requests` handles GetMessages, ConsumerCommit and
ConsumerHeartbeat. `rebalance` handles CreateGroupCursor and assigns partitions. Both work on a `section`.
`groups.group` has the committed offsets.
"""

from collections.abc import Collection, Iterable
from uuid import UUID

from headrace.groups import timers
from headrace.groups.instances import rebalance, requests
from headrace.groups.instances.events import (
    Beat,
    CommitCursor,
    CreateCursor,
    CursorResult,
    Delivered,
    Get,
    InstanceRequest,
    InstanceResult,
    TopicFacts,
    Update,
    Updated,
)
from headrace.groups.instances.model import GroupCursor, Reservation
from headrace.groups.instances.section import BEGINNING, Section
from headrace.groups.model import GroupSettings, StoredBalanced, StoredStart
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.turn import Turn
from headrace.machines.effects import Now


class BalancedGroup:
    """A section and its events."""

    def __init__(self, section: Section) -> None:
        self._section = section

    @property
    def section(self) -> Section:
        """Its data."""
        return self._section

    @classmethod
    def create(
        cls,
        group: str,
        topic: TopicFacts,
        starts: tuple[StoredStart, ...],
        leader_epochs: tuple[int, ...],
        positions: CommittedOffsets,
        settings: GroupSettings,
        turn: Turn,
        taken: Collection[int] = (),
    ) -> "BalancedGroup":
        """Create a section. Partitions start at their start offset, unless the group has a committed offset.

        Nothing is committed for partitions that consumers have `taken`: they may be further.
        """
        section = Section(group, topic, positions, settings, turn.now_ms)
        section.changed()
        section.begin(starts, leader_epochs, turn, taken)
        return cls(section)

    @classmethod
    def restore(
        cls,
        group: str,
        stored: StoredBalanced,
        positions: CommittedOffsets,
        settings: GroupSettings,
        turn: Turn,
        *,
        shared: bool = False,
    ) -> "BalancedGroup":
        """Restore the stored section with new timeouts. Sets timers only. `shared`: the group has consumers."""
        section = Section.restore(group, stored, positions, settings, turn)
        if not shared:
            rebalance.aim_again(section, turn.ticks_ms)
        for member in section.instances.values():
            rebalance.watch(section, member, turn)
        restored = cls(section)
        restored._watch_use(turn)
        return restored

    @property
    def topic_id(self) -> UUID | None:
        """Id of its topic. None: unknown."""
        return self._section.topic_id

    def dismiss_silent(self, at_ms: int, turn: Turn) -> None:
        """Remove silent instances. Runs before every event."""
        rebalance.dismiss_silent(self._section, at_ms, turn)

    def answer(self, request: InstanceRequest, turn: Turn) -> InstanceResult:
        """Handle a request. Raises InstanceError if it is rejected."""
        section = self._section
        self._use(request.topic, turn)
        match request:
            case CreateCursor():
                return CursorResult(rebalance.create_cursor(section, request, turn))
            case Get():
                return requests.get(section, request.cursor, turn)
            case CommitCursor():
                return CursorResult(requests.commit(section, request.cursor, turn))
            case Beat():
                return CursorResult(requests.beat(section, request.cursor, turn))
            case Update():
                self._update(request, turn)
                return Updated()

    def check(self, cursor: GroupCursor) -> None:
        """Raise InstanceError for a cursor of an earlier section."""
        rebalance.check_cursor(self._section, cursor)

    def delivered(self, event: Delivered, turn: Turn) -> bool:
        """Handle the result of a get. Return whether its plan is still known."""
        return requests.delivered(self._section, event, turn)

    def timer_fired(self, name: str, turn: Turn) -> None:
        """Set the timer of an instance again that was not silent."""
        member = self._section.instances.get(name)
        if member is not None:
            rebalance.watch(self._section, member, turn)

    def look_again(self, turn: Turn, used_ms: int) -> bool:
        """Return whether the section was unused for the retention time.

        `used_ms`: last use of the topic by another API in this group.
        """
        section = self._section
        section.used_ms = max(section.used_ms, used_ms)
        if section.retention_ms < 0:
            return False
        if not section.instances and turn.now_ms - section.used_ms >= section.retention_ms:
            return True
        self._watch_use(turn)
        return False

    def follow(self, index: int) -> None:
        """Apply an offset committed through another API."""
        section = self._section
        if index >= len(section.holdings):
            return
        # Its leader epoch, if any, came with it.
        section.holdings[index].leader_epoch = -1
        section.invalidate(index)
        if section.holdings[index].start is not None:
            section.holdings[index].start = None
            section.changed()

    def offset_removed(self, index: int) -> None:
        """Handle an offset deleted through another API: the partition starts again without a gap."""
        section = self._section
        if index < len(section.holdings):
            section.holdings[index].start = BEGINNING
            section.invalidate(index)
            section.changed()

    def finish(self, turn: Turn) -> None:
        """Finish a turn."""
        self._section.finish(turn)

    def cancel_timers(self, turn: Turn) -> None:
        """Cancel all timers before the section is dropped."""
        turn.cancel_timer(timers.unused(self._section.topic))
        for name in self._section.instances:
            turn.cancel_timer(timers.instance(self._section.topic, name))

    def _use(self, topic: TopicFacts, turn: Turn) -> None:
        section = self._section
        section.use(topic, turn.now_ms)
        if topic.partitions > len(section.holdings):
            section.grow(topic.partitions, turn)
            rebalance.rebalance(section, turn)
        if section.retention_ms >= 0 and not turn.has_timer(timers.unused(section.topic)):
            self._watch_use(turn)

    def _watch_use(self, turn: Turn) -> None:
        section = self._section
        if section.retention_ms >= 0:
            left_ms = section.used_ms + section.retention_ms - turn.now_ms
            # A member keeps the section, however long its timeout.
            instances = section.instances.values()
            last_out_ms = max((each.seen_ms + each.timeout_ms + 1 - turn.ticks_ms for each in instances), default=0)
            turn.set_timer(timers.unused(section.topic), min(max(left_ms, last_out_ms), timers.LONGEST_MS))

    def _update(self, request: Update, turn: Turn) -> None:
        """Reset every offset. Owners keep their partitions, but cannot commit records in flight."""
        section, starts, epochs = self._section, request.starts, request.leader_epochs
        section.epoch += 1
        section.changed()
        moved = {}
        for index, holding in enumerate(section.holdings):
            holding.start = starts[index] if index < len(starts) else BEGINNING
            holding.forget_flight()
            if index < len(epochs):
                holding.leader_epoch = max(holding.leader_epoch, epochs[index])
            moved[index] = holding.start.offset
        for member in section.instances.values():
            member.told = True
        section.open_reads.clear()
        section.advance_offsets(moved, turn)

    @property
    def has_instances(self) -> bool:
        """Whether the section has instances."""
        return bool(self._section.instances)

    @property
    def is_settled(self) -> bool:
        """Whether no partition is waiting to move."""
        return all(holding.target is None for holding in self._section.holdings)

    def stored(self) -> StoredBalanced:
        """Return the stored form."""
        return self._section.stored()

    @property
    def generation(self) -> int:
        """Number of ownership changes."""
        return self._section.generation

    @property
    def size(self) -> int:
        """Number of instances."""
        return len(self._section.instances)

    @property
    def names(self) -> Iterable[str]:
        """Instances in join order."""
        return self._section.instances

    def shares(self) -> dict[str, list[int]]:
        """Return the partitions of each instance, in join order."""
        return {name: self._section.held_by(name) for name in self._section.instances}

    def reservations(self, now: Now) -> list[Reservation]:
        """Return every partition with its offset and owner."""
        section = self._section
        found = []
        for index, holding in enumerate(section.holdings):
            member = section.instances.get(holding.owner or "")
            found.append(
                Reservation(
                    partition=index,
                    committed=None if holding.start is not None else section.position(index),
                    instance=None if member is None else member.name,
                    reserved_until_ms=None
                    if member is None
                    else now.wall_ms + member.seen_ms + member.timeout_ms - now.ticks_ms,
                )
            )
        return found
