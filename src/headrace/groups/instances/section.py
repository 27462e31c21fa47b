"""What a balanced section consists of: its instances, its partitions, and the numbers that order their requests.

Rule of this file, as of the classic `membership`: it keeps the parts true to each other and decides nothing.
`requests` and `rebalance` decide.
"""

from collections.abc import Iterable

import msgspec

from headrace.groups.instances.events import TopicFacts
from headrace.groups.instances.model import GroupCursor, StartKind
from headrace.groups.model import (
    GroupSettings,
    OffsetAndMetadata,
    SaveBalanced,
    StoredBalanced,
    StoredInstance,
    StoredOwner,
    StoredStart,
    TopicPartition,
)
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.turn import Turn


class Holding:
    """A partition's owner and the state of its tenure.

    A tenure is the time for which one owner continuously has the partition; `granted` identifies it. A lapsed tenure
    continues if its instance returns before another one gets the partition.
    """

    __slots__ = (
        "delivered",
        "exposed",
        "granted",
        "lapsed",
        "leader_epoch",
        "owner",
        "readers",
        "since_ms",
        "start",
        "target",
        "valid_from",
    )

    def __init__(
        self,
        start: StoredStart | None,
        owner: StoredOwner | None = None,
        valid_from: int = 0,
        *,
        exposed: bool = False,
    ) -> None:
        self.start = start
        """Where it began, as long as nothing was committed."""
        self.owner = None if owner is None else owner.instance
        self.granted = 0 if owner is None else owner.generation
        """The generation in which the owner got it."""
        self.lapsed: tuple[str, int] | None = None
        """Name and incarnation of the instance whose tenure has lapsed, while no instance owns the partition."""
        self.valid_from = valid_from
        """Offsets of older cursors cannot be committed: the position or the log was replaced in this generation."""
        self.exposed = exposed
        """Whether cursors may exist whose offsets in this partition are valid."""
        self.target: str | None = None
        """The next owner."""
        self.since_ms = 0
        """Since when (ticks) the owner is to give it up."""
        self.delivered = -1
        """Next offset after what was delivered in this tenure; -1: nothing was, as far as is known."""
        self.readers = 0
        """Gets of this tenure that are reading it now."""
        self.leader_epoch = -1
        """Leader epoch of the log at the last read, as stored with the offset, whose own epoch may be later; -1:
        unknown.
        """

    def stored_owner(self) -> StoredOwner | None:
        """The form in which the owner survives a restart."""
        return None if self.owner is None else StoredOwner(self.owner, self.granted)

    def grant(self, owner: str, incarnation: int, generation: int) -> None:
        """Give the partition to an instance, by this generation. A tenure that has lapsed continues."""
        self.owner, self.target = owner, None
        if self.lapsed != (owner, incarnation):
            self.begin_tenure(generation)
        self.lapsed = None

    def begin_tenure(self, generation: int) -> None:
        """The owner has the partition from this generation on, with nothing in flight."""
        self.granted = generation
        self.forget_flight()

    def invalidate(self, generation: int) -> None:
        """Start over with this generation: no offset that was delivered before it can be committed."""
        self.valid_from = generation
        self.exposed = False
        self.begin_tenure(generation)

    def release(self) -> None:
        """The tenure ends; for whom it is meant stays known."""
        self.owner = self.lapsed = None
        self.forget_flight()

    def lapse(self, incarnation: int) -> None:
        """The owner is silent: the partition is free, and still the owner's until another instance takes it."""
        assert self.owner is not None
        self.lapsed, self.owner = (self.owner, incarnation), None

    def belongs_to(self, name: str, incarnation: int) -> bool:
        """Whether an instance owns the partition, or did when it fell silent."""
        return self.owner == name or self.lapsed == (name, incarnation)

    def forget_flight(self) -> None:
        """What is in flight can no longer be committed."""
        self.delivered, self.readers = -1, 0

    def aim(self, target: str | None, ticks_ms: int) -> None:
        """Decide who shall have it next; None: the owner keeps it."""
        if self.target is None and target is not None:
            self.since_ms = ticks_ms
        self.target = target

    def in_flight(self, position: int) -> bool:
        """Whether records behind `position` are with the owner, or on their way to it."""
        return self.readers > 0 or self.delivered > position


class Instance:
    """What the section knows of one member."""

    __slots__ = (
        "commit_on_get",
        "commits",
        "extended_ms",
        "incarnation",
        "joined",
        "last_get",
        "lost",
        "name",
        "seen_ms",
        "served",
        "timeout_ms",
        "told",
    )

    def __init__(self, cursor: GroupCursor, ticks_ms: int) -> None:
        self.name = cursor.instance
        self.joined = 0
        self.begin(cursor.incarnation, cursor.timeout_ms, cursor.commit_on_get, ticks_ms)

    @classmethod
    def restore(cls, stored: StoredInstance, ticks_ms: int) -> "Instance":
        """Return the stored member with a new timeout and unknown records in flight."""
        member = cls.__new__(cls)
        member.name = stored.name
        member.joined = stored.joined
        member.begin(stored.incarnation, stored.timeout_ms, stored.commit_on_get, ticks_ms)
        member.lost = dict(stored.lost)
        member.told = False
        return member

    def begin(self, incarnation: int, timeout_ms: int, commit_on_get: bool, ticks_ms: int) -> None:
        """A life of the instance begins, with nothing in hand: it comes in, or a newer cursor takes over."""
        self.incarnation = incarnation
        self.timeout_ms = timeout_ms
        self.commit_on_get = commit_on_get
        self.seen_ms = ticks_ms
        """When (ticks) its last request came."""
        self.extended_ms = ticks_ms
        """When (ticks) it last committed, or said by a heartbeat that it is at work on what it has in hand."""
        self.lost: dict[int, int] = {}
        self.told = True
        """Whether its cursors have reported its records in flight since the server started."""
        self.served = -1
        """The partition whose records it was given last: the next answer begins behind it."""
        self.last_get: tuple[GroupCursor, int, int] | None = None
        """Cursor, `commits` and `served` of its last get, to know a repeated one by."""
        self.commits = 0
        """How many of its requests moved a position."""

    def stored(self) -> StoredInstance:
        """The form in which it survives a restart."""
        return StoredInstance(
            name=self.name,
            incarnation=self.incarnation,
            timeout_ms=self.timeout_ms,
            commit_on_get=self.commit_on_get,
            joined=self.joined,
            lost=dict(self.lost),
        )

    def is_silent(self, ticks_ms: int) -> bool:
        """Whether its last request lies further back than its timeout."""
        return ticks_ms - self.seen_ms > self.timeout_ms


BEGINNING = StoredStart(0, StartKind.TRIM_HORIZON)
"""Start of a partition that was added later or whose offset was deleted: nothing is skipped."""
_COARSEST_MS = 600_000
_USES_PER_RETENTION = 10
_READS_PER_MS = 1_000_000


class OpenRead(msgspec.Struct, frozen=True):
    """A get that is reading: whose, and of which tenures. UpdateGroup overtakes all of them."""

    instance: str
    incarnation: int
    tenures: dict[int, int]
    """Partition -> the generation in which it was granted."""


class Section:
    """One topic of a group, as its instances share it."""

    def __init__(
        self, group: str, topic: TopicFacts, positions: CommittedOffsets, settings: GroupSettings, now_ms: int
    ) -> None:
        self.group = group
        self.topic = topic.name
        self.topic_id = topic.id
        self.retention_ms = topic.retention_ms
        self.settings = settings
        self.created_ms = now_ms
        # Cursors of an earlier section of the same name are thus of an older epoch than any of this one's.
        self.epoch = now_ms
        self.generation = 0
        self.incarnations = 0
        self.used_ms = 0
        self.instances: dict[str, Instance] = {}
        """In the order in which they joined."""
        self.holdings: list[Holding] = []
        self.open_reads: dict[int, OpenRead] = {}
        # A get that began before a restart, or in an earlier section of the name, must not be taken for a new one.
        self.last_read = now_ms * _READS_PER_MS
        self._positions = positions
        self._partitions: list[TopicPartition] = []
        """The names of those that `holdings` has."""
        self._stored_used_ms = 0
        self._changed = False
        self._moved = False

    @classmethod
    def restore(
        cls, group: str, stored: StoredBalanced, positions: CommittedOffsets, settings: GroupSettings, turn: Turn
    ) -> "Section":
        """The section as it was stored."""
        facts = TopicFacts(stored.topic, len(stored.owners), stored.retention_ms, stored.topic_id)
        section = cls(group, facts, positions, settings, turn.now_ms)
        section.created_ms = stored.created_ms
        section.epoch = stored.epoch
        section.generation = stored.generation
        section.incarnations = stored.incarnations
        # What was stored is at most this much too early.
        section.used_ms = min(turn.now_ms, stored.used_ms + section.grain_ms)
        section._stored_used_ms = stored.used_ms
        section.instances = {each.name: Instance.restore(each, turn.ticks_ms) for each in stored.instances}
        for index, owner in enumerate(stored.owners):
            valid_from = stored.valid_from.get(index, 0)
            section.add(Holding(stored.starts.get(index), owner, valid_from, exposed=True))
        return section

    def stored(self) -> StoredBalanced:
        """The form in which it survives a restart."""
        return StoredBalanced(
            topic=self.topic,
            created_ms=self.created_ms,
            epoch=self.epoch,
            generation=self.generation,
            incarnations=self.incarnations,
            retention_ms=self.retention_ms,
            used_ms=self.used_ms,
            instances=tuple(instance.stored() for instance in self.instances.values()),
            owners=tuple(holding.stored_owner() for holding in self.holdings),
            starts={index: each.start for index, each in enumerate(self.holdings) if each.start is not None},
            topic_id=self.topic_id,
            valid_from={index: each.valid_from for index, each in enumerate(self.holdings) if each.valid_from},
        )

    # changes

    def add(self, holding: Holding) -> None:
        """The topic has one partition more."""
        self._partitions.append(TopicPartition(self.topic, len(self.holdings)))
        self.holdings.append(holding)

    def changed(self) -> None:
        """Something that must survive a restart is different now."""
        self._changed = True

    def moved(self) -> int:
        """Ownership changes in this turn: the generation that begins with it."""
        if not self._moved:
            self._moved = True
            self._changed = True
            self.generation += 1
        return self.generation

    def invalidate(self, index: int) -> None:
        """Invalidate deliveries after an offset was set externally.

        If Kafka consumers commit all the time, this costs once, because then no instance has a valid cursor.
        """
        if self.holdings[index].exposed:
            self.holdings[index].invalidate(self.moved())

    def finish(self, turn: Turn) -> None:
        """End a turn: make durable what has changed."""
        if self._changed:
            self._stored_used_ms = self.used_ms
            turn.save(SaveBalanced(self.stored()))
        self._changed = self._moved = False

    def use(self, topic: TopicFacts, now_ms: int) -> None:
        """An API uses the section. When it did is stored coarsely: a request must not cost a write."""
        if topic.retention_ms != self.retention_ms:
            self.retention_ms = topic.retention_ms
            self._changed = True
        if self.topic_id is None and topic.id is not None:
            # An older server made it.
            self.topic_id = topic.id
            self._changed = True
        self.used_ms = now_ms
        if abs(now_ms - self._stored_used_ms) > self.grain_ms:
            self._changed = True

    @property
    def grain_ms(self) -> int:
        """How far the stored time of the last use may lie behind the real one."""
        return min(_COARSEST_MS, max(self.retention_ms, 0) // _USES_PER_RETENTION)

    # positions

    def standing(self, index: int) -> tuple[int, int]:
        """`position` and `leader_epoch` of a partition."""
        position, holding = self._positions.get(self._partitions[index]), self.holdings[index]
        if position is None:
            return (holding.start or BEGINNING).offset, holding.leader_epoch
        return position.offset, max(holding.leader_epoch, position.leader_epoch)

    def position(self, index: int) -> int:
        """The next offset to read in a partition: what was committed, else where it began."""
        return self.standing(index)[0]

    def has_offset(self, index: int) -> bool:
        """Whether the group has a position in a partition, by whichever API."""
        return self._positions.get(self._partitions[index]) is not None

    def leader_epoch(self, index: int) -> int:
        """The latest leader epoch under which the log had what was delivered and committed; -1: not known."""
        return self.standing(index)[1]

    def advance_offsets(self, offsets: dict[int, int], turn: Turn) -> None:
        """Set positions by partition; they are saved with this turn."""
        if offsets:
            positions = {
                self._partitions[index]: OffsetAndMetadata(
                    offset=offset,
                    topic_id=self.topic_id,
                    leader_epoch=self.leader_epoch(index),
                    committed_ms=turn.now_ms,
                )
                for index, offset in offsets.items()
            }
            changes, _ = self._positions.commit(positions, self.settings, turn.now_ms)
            turn.save(*changes)

    def save_leader_epochs(self, indices: Iterable[int], turn: Turn) -> None:
        """Save the leader epochs under which partitions were read, if they have increased.

        Cursors have no leader epoch. Without this, a restarted server would take records in flight for lost.
        """
        known = {index: self._positions.get(self._partitions[index]) for index in indices}
        risen = {
            self._partitions[index]: msgspec.structs.replace(position, leader_epoch=self.holdings[index].leader_epoch)
            for index, position in known.items()
            if position is not None and position.leader_epoch < self.holdings[index].leader_epoch
        }
        changes, _ = self._positions.commit(risen, self.settings, turn.now_ms)
        turn.save(*changes)

    # who has what

    def held_by(self, name: str) -> list[int]:
        """The partitions that an instance holds, in order."""
        return [index for index, holding in enumerate(self.holdings) if holding.owner == name]

    def offsets_of(self, member: Instance, cursor: GroupCursor) -> dict[int, int]:
        """Return a cursor's valid offsets in partitions that the member holds. Must not be outdated.

        Another instance may have held such a partition in between. The cursor's chain delivered everything before its
        offsets, so committing them skips nothing.
        """
        return {
            index: offset for index, offset in self.valid_offsets(cursor) if self.holdings[index].owner == member.name
        }

    def valid_offsets(self, cursor: GroupCursor) -> list[tuple[int, int]]:
        """Those of a cursor's offsets before which every record was delivered to its instance, or committed."""
        if cursor.epoch != self.epoch:
            return []
        return [
            (index, offset)
            for index, offset in cursor.offsets
            if index < len(self.holdings) and self.holdings[index].valid_from <= cursor.generation
        ]

    def next_cursor(self, cursor: GroupCursor, offsets: tuple[tuple[int, int], ...] = ()) -> GroupCursor:
        """A cursor of the same life, as of now."""
        return msgspec.structs.replace(cursor, epoch=self.epoch, generation=self.generation, offsets=offsets)
