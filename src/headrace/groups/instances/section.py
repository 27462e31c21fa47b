"""Data of a balanced section: instances, partitions, and the numbers that order requests.

It keeps them consistent and decides nothing. `requests` and `rebalance` decide.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

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

ANOTHER = ""
"""Target of a partition that should go to a consumer. No instance has this name."""


class Holding:
    """A partition's owner and tenure.

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
        "taken",
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
        """Start of the partition, until the first commit."""
        self.owner = None if owner is None else owner.instance
        self.granted = 0 if owner is None else owner.generation
        """Generation in which the owner got it."""
        self.lapsed: tuple[str, int] | None = None
        """Name and incarnation of the instance of a lapsed tenure."""
        self.valid_from = valid_from
        """Generation in which offset or log were replaced. Offsets of older cursors cannot be committed."""
        self.exposed = exposed
        """Whether cursors with valid offsets in this partition may exist."""
        self.taken = False
        """Whether a consumer owns it. Then it has no owner among the instances."""
        self.target: str | None = None
        """Next owner. `ANOTHER`: a consumer."""
        self.since_ms = 0
        """Ticks since which the owner is to give it up."""
        self.delivered = -1
        """Offset after the records delivered in this tenure. -1: none known."""
        self.readers = 0
        """Gets of this tenure that are reading."""
        self.leader_epoch = -1
        """Leader epoch of the log at the last read. -1: unknown. That of the committed offset may be later."""

    def stored_owner(self) -> StoredOwner | None:
        """Return the owner's stored form."""
        return None if self.owner is None else StoredOwner(self.owner, self.granted)

    def grant(self, owner: str, incarnation: int, generation: int) -> None:
        """Give the partition to an instance in this generation. A lapsed tenure continues."""
        self.owner, self.target = owner, None
        if self.lapsed != (owner, incarnation):
            self.begin_tenure(generation)
        self.lapsed = None

    def begin_tenure(self, generation: int) -> None:
        """Start a tenure of the owner, with nothing in flight."""
        self.granted = generation
        self.forget_flight()

    def invalidate(self, generation: int) -> None:
        """Start a tenure in which no earlier delivery can be committed."""
        self.valid_from = generation
        self.exposed = False
        self.begin_tenure(generation)

    def take(self, generation: int) -> None:
        """Note that a consumer owns the partition from this generation on."""
        self.owner = self.lapsed = None
        self.taken = True
        self.begin_tenure(generation)

    def release(self) -> None:
        """End the tenure. The target remains."""
        self.owner = self.lapsed = None
        self.forget_flight()

    def lapse(self, incarnation: int) -> None:
        """Free the partition of a silent owner, which keeps its tenure until another instance takes it."""
        assert self.owner is not None
        self.lapsed, self.owner = (self.owner, incarnation), None

    def belongs_to(self, name: str, incarnation: int) -> bool:
        """Whether an instance owns the partition, or did before its tenure lapsed."""
        return self.owner == name or self.lapsed == (name, incarnation)

    def forget_flight(self) -> None:
        """Forget records in flight: they can no longer be committed."""
        self.delivered, self.readers = -1, 0

    def aim(self, target: str | None, ticks_ms: int) -> None:
        """Set the next owner. None: the owner keeps it."""
        if self.target is None and target is not None:
            self.since_ms = ticks_ms
        self.target = target

    def in_flight(self, position: int) -> bool:
        """Whether records from `position` on are with the owner, or on their way to it."""
        return self.readers > 0 or self.delivered > position


class Instance:
    """State of one member."""

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
        """Start with nothing in flight: the instance enters, or a newer cursor takes over."""
        self.incarnation = incarnation
        self.timeout_ms = timeout_ms
        self.commit_on_get = commit_on_get
        self.seen_ms = ticks_ms
        """Ticks of its last request."""
        self.extended_ms = ticks_ms
        """Ticks of its last commit or heartbeat."""
        self.lost: dict[int, int] = {}
        self.told = True
        """Whether its cursors have reported its records in flight since the server started."""
        self.served = -1
        """Last partition served. The next response starts after it."""
        self.last_get: tuple[GroupCursor, int, int] | None = None
        """Cursor, `commits` and `served` of its last get, to detect a repeated one."""
        self.commits = 0
        """Number of requests that changed an offset."""

    def stored(self) -> StoredInstance:
        """Return the stored form."""
        return StoredInstance(
            name=self.name,
            incarnation=self.incarnation,
            timeout_ms=self.timeout_ms,
            commit_on_get=self.commit_on_get,
            joined=self.joined,
            lost=dict(self.lost),
        )

    def is_silent(self, ticks_ms: int) -> bool:
        """Whether its timeout has passed since its last request."""
        return ticks_ms - self.seen_ms > self.timeout_ms


BEGINNING = StoredStart(0, StartKind.TRIM_HORIZON)
"""Start of a partition that was added later or whose offset was deleted: nothing is skipped."""
_COARSEST_MS = 600_000
_USES_PER_RETENTION = 10
_READS_PER_MS = 1_000_000


class OpenRead(msgspec.Struct, frozen=True):
    """A get that is reading, with its tenures. UpdateGroup discards all of them."""

    instance: str
    incarnation: int
    tenures: dict[int, int]
    """Partition -> the generation in which it was granted."""


class Pool(Protocol):
    """Decides about partitions of a section that consumers share."""

    def rebalance(self, section: "Section", turn: Turn) -> None:
        """Grant free partitions, and decide which ones owners must give up."""


class Section:
    """One topic of a group, shared by instances."""

    def __init__(
        self, group: str, topic: TopicFacts, positions: CommittedOffsets, settings: GroupSettings, now_ms: int
    ) -> None:
        self.group = group
        self.topic = topic.name
        self.topic_id = topic.id
        self.retention_ms = topic.retention_ms
        self.settings = settings
        self.created_ms = now_ms
        # Cursors of an earlier section of the same name thus have an older epoch.
        self.epoch = now_ms
        self.generation = 0
        self.incarnations = 0
        self.used_ms = 0
        self.instances: dict[str, Instance] = {}
        """In join order."""
        self.holdings: list[Holding] = []
        self.pool: Pool | None = None
        """None: there are no consumers. The section decides alone."""
        self.open_reads: dict[int, OpenRead] = {}
        # No number of a get from before a restart, or of an earlier section, is used again.
        self.last_read = now_ms * _READS_PER_MS
        self._positions = positions
        self._partitions: list[TopicPartition] = []
        """Partitions of `holdings`."""
        self._stored_used_ms = 0
        self._changed = False
        self._moved = False

    @classmethod
    def restore(
        cls, group: str, stored: StoredBalanced, positions: CommittedOffsets, settings: GroupSettings, turn: Turn
    ) -> "Section":
        """Restore a stored section."""
        facts = TopicFacts(stored.topic, len(stored.owners), stored.retention_ms, stored.topic_id)
        section = cls(group, facts, positions, settings, turn.now_ms)
        section.created_ms = stored.created_ms
        section.epoch = stored.epoch
        section.generation = stored.generation
        section.incarnations = stored.incarnations
        # The stored time is at most this much too early.
        section.used_ms = min(turn.now_ms, stored.used_ms + section.grain_ms)
        section._stored_used_ms = stored.used_ms
        section.instances = {each.name: Instance.restore(each, turn.ticks_ms) for each in stored.instances}
        for index, owner in enumerate(stored.owners):
            valid_from = stored.valid_from.get(index, 0)
            section.add(Holding(stored.starts.get(index), owner, valid_from, exposed=True))
        for index, target in stored.targets.items():
            section.holdings[index].aim(target, turn.ticks_ms)
        return section

    def stored(self) -> StoredBalanced:
        """Return the stored form."""
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
            # A section alone finds them again.
            targets={} if self.pool is None else dict(self._aimed()),
        )

    def _aimed(self) -> Iterable[tuple[int, str]]:
        return ((index, each.target) for index, each in enumerate(self.holdings) if each.target is not None)

    def add(self, holding: Holding) -> None:
        """Add a partition of the topic."""
        self._partitions.append(TopicPartition(self.topic, len(self.holdings)))
        self.holdings.append(holding)

    def changed(self) -> None:
        """Mark the state as changed, to be stored."""
        self._changed = True

    def moved(self) -> int:
        """Mark an ownership change, and return the generation that starts with it."""
        if not self._moved:
            self._moved = True
            self._changed = True
            self.generation += 1
        return self.generation

    def invalidate(self, index: int) -> None:
        """Invalidate deliveries after an offset was set externally.

        Frequent commits of Kafka consumers cost this once: then no instance has a valid cursor.
        """
        if self.holdings[index].exposed:
            self.holdings[index].invalidate(self.moved())

    def finish(self, turn: Turn) -> None:
        """End a turn: store changes."""
        if self._changed:
            self._stored_used_ms = self.used_ms
            turn.save(SaveBalanced(self.stored()))
        self._changed = self._moved = False

    def use(self, topic: TopicFacts, now_ms: int) -> None:
        """Record a use by an API. Its time is stored coarsely, so that not every request writes."""
        if topic.retention_ms != self.retention_ms:
            self.retention_ms = topic.retention_ms
            self._changed = True
        if self.topic_id is None and topic.id is not None:
            # An older server created it.
            self.topic_id = topic.id
            self._changed = True
        self.used_ms = now_ms
        if abs(now_ms - self._stored_used_ms) > self.grain_ms:
            self._changed = True

    @property
    def grain_ms(self) -> int:
        """Maximum delay of the stored time of the last use."""
        return min(_COARSEST_MS, max(self.retention_ms, 0) // _USES_PER_RETENTION)

    def standing(self, index: int) -> tuple[int, int]:
        """Return `position` and `leader_epoch` of a partition."""
        position, holding = self._positions.get(self._partitions[index]), self.holdings[index]
        if position is None:
            return (holding.start or BEGINNING).offset, holding.leader_epoch
        return position.offset, max(holding.leader_epoch, position.leader_epoch)

    def position(self, index: int) -> int:
        """Return the next offset to read in a partition: the committed one, else its start."""
        return self.standing(index)[0]

    def has_offset(self, index: int) -> bool:
        """Whether the group has a committed offset in a partition."""
        return self._positions.get(self._partitions[index]) is not None

    def leader_epoch(self, index: int) -> int:
        """Return the latest leader epoch of deliveries and commits. -1: unknown."""
        return self.standing(index)[1]

    def advance_offsets(self, offsets: dict[int, int], turn: Turn) -> None:
        """Set and save offsets by partition."""
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
        """Save increased leader epochs of reads.

        Cursors have no leader epoch. Without this, a restarted server would take records in flight for lost.
        """
        known = {index: self._positions.get(self._partitions[index]) for index in indices}
        risen = {
            self._partitions[index]: msgspec.structs.replace(position, leader_epoch=self.holdings[index].leader_epoch)
            for index, position in known.items()
            if position is not None and position.leader_epoch < self.holdings[index].leader_epoch
        }
        changes, _ = self._positions.commit(risen, self.settings, turn.now_ms, overtakes=False)
        turn.save(*changes)

    def targets_of(self, name: str) -> list[int]:
        """Return the partitions that an instance should have."""
        return [
            index
            for index, each in enumerate(self.holdings)
            if each.target == name or (each.target is None and each.owner == name)
        ]

    def grow(self, partitions: int, turn: Turn) -> None:
        """Add partitions that the topic got."""
        missing = partitions - len(self.holdings)
        if missing > 0:
            self.begin((BEGINNING,) * missing, (), turn)

    def begin(
        self, starts: tuple[StoredStart, ...], leader_epochs: tuple[int, ...], turn: Turn, taken: Collection[int] = ()
    ) -> None:
        """Add partitions, and commit their starts if they have no committed offset and are not `taken` by consumers."""
        begun: dict[int, int] = {}
        for index, start in enumerate(starts, len(self.holdings)):
            holding = Holding(start)
            self.add(holding)
            if self.has_offset(index):
                holding.start = None
            elif index not in taken:
                begun[index] = start.offset
                holding.leader_epoch = leader_epochs[index] if index < len(leader_epochs) else -1
        self.changed()
        self.advance_offsets(begun, turn)

    def held_by(self, name: str) -> list[int]:
        """Return an instance's partitions in order."""
        return [index for index, holding in enumerate(self.holdings) if holding.owner == name]

    def offsets_of(self, member: Instance, cursor: GroupCursor) -> dict[int, int]:
        """Return a current cursor's valid offsets in partitions that the member holds.

        Another instance may have held such a partition in between. The cursor's chain delivered everything before its
        offsets, so committing them skips nothing.
        """
        return {
            index: offset for index, offset in self.valid_offsets(cursor) if self.holdings[index].owner == member.name
        }

    def valid_offsets(self, cursor: GroupCursor) -> list[tuple[int, int]]:
        """Return a cursor's offsets before which every record was delivered to its instance, or committed."""
        if cursor.epoch != self.epoch:
            return []
        return [
            (index, offset)
            for index, offset in cursor.offsets
            if index < len(self.holdings) and self.holdings[index].valid_from <= cursor.generation
        ]

    def next_cursor(self, cursor: GroupCursor, offsets: tuple[tuple[int, int], ...] = ()) -> GroupCursor:
        """Return the next cursor of the chain."""
        return msgspec.structs.replace(cursor, epoch=self.epoch, generation=self.generation, offsets=offsets)
