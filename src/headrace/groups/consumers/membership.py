"""Members of a consumer group, their indexes, and their changes for storage, without rules."""

from collections import Counter
from collections.abc import Iterable

from headrace.groups import timers
from headrace.groups.assignment.holdings import Holdings, InstanceKey, MemberKey, Topic
from headrace.groups.consumers.events import Assign, Resolve
from headrace.groups.consumers.member import PARTITION_BYTES, Member, Parts, Protocols
from headrace.groups.description import Client, Moved
from headrace.groups.events import Join
from headrace.groups.model import (
    CONSUMER_FIELD,
    DropField,
    GroupChange,
    GroupHeader,
    GroupKind,
    SaveField,
    SaveHeader,
    StoredConsumer,
)
from headrace.groups.turn import Turn

UNIFORM = "uniform"


class Membership:
    """Members of one group."""

    def __init__(self, name: str, epoch: int, target_epoch: int) -> None:
        self.name = name
        self.holdings: Holdings[MemberKey] = Holdings(epoch, target_epoch)
        self.members: dict[str, Member] = {}
        self.instances: set[InstanceKey] = set()
        """OCI instances among the members of `holdings` (`consumers.instances`)."""
        self.header: GroupHeader | None = None
        """The last one for storage."""
        self.empty_since_ms: int | None = None
        self.aimed: dict[str, Parts] = {}
        """Members' targets, as they were computed."""
        self.assign: Assign | None = None
        """Running computation of a target."""
        self.assign_epoch = 0
        """The group's epoch when the last computation began."""
        self.discarded = 0
        """Number of consecutive outdated results."""
        self.assigned = 0
        """Number of partitions in the target."""
        self._instances: dict[str, str] = {}
        self._assignors: Counter[str] = Counter()
        self._protocols: Counter[str] = Counter()
        """Classic protocols, by the number of their members."""
        self.classic = 0
        """Number of classic members."""
        self._member_bytes = 0
        self._changed: set[str] = set()
        self._dropped: dict[str, None] = {}
        """Fields that storage has and must remove."""
        self._moved: dict[str, Client | None] = {}

    def __len__(self) -> int:
        return len(self.members)

    @property
    def bytes(self) -> int:
        """Approximate bytes of all members."""
        return self._member_bytes + PARTITION_BYTES * self.assigned

    def restore(self, header: GroupHeader, stored: Iterable[StoredConsumer]) -> None:
        """Add stored members. One whose state contradicts another's must join again."""
        self.header, self.empty_since_ms = header, header.empty_since_ms
        for each in sorted(stored, key=lambda each: each.member_id):
            held = {
                Topic(grants.topic, grants.topic_id): {
                    partition: epoch for epoch, partitions in grants.granted.items() for partition in partitions
                }
                for grants in each.held
            }
            target = {Topic(parts.topic, parts.topic_id): parts.partitions for parts in each.target}
            try:
                member = Member.restore(each)
                if each.pattern:
                    # The topics of a pattern are not stored. It matched at least these.
                    member.matched = frozenset(topic.name for topic in (*held, *target)).difference(each.topics)
                    member.size = member.charged()
                self.holdings.restore(each.member_id, member.subscription, held, target)
            except ValueError:
                if each.member_id in self.holdings.members:
                    self.holdings.leave(each.member_id)
                self._dropped[each.field] = None
                continue
            known = self.holdings.held(each.member_id)
            member.revoking = {
                topic: partitions & known[topic] for topic, partitions in member.revoking.items() if topic in known
            }
            self._index(member)
            self.aimed[member.member_id] = self.holdings.target(member.member_id)
            self.assigned += sum(len(partitions) for partitions in target.values())

    def _index(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        if member.assignor is not None:
            self._assignors[member.assignor] += 1
        self._count(member, 1)
        self._member_bytes += member.size

    def _count(self, member: Member, step: int) -> None:
        if member.is_classic:
            self.classic += step
            for name in dict(member.protocols):
                self._protocols[name] += step

    def _unindex(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        if member.assignor is not None:
            self._assignors[member.assignor] -= 1
        self._count(member, -1)
        self._member_bytes -= member.size
        self._changed.discard(member.member_id)
        self._dropped[f"{CONSUMER_FIELD}{member.member_id}"] = None

    def instance(self, instance_id: str) -> Member | None:
        """Return the member of a static instance."""
        member_id = self._instances.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def add(self, member: Member) -> None:
        """Add a member. `subscribe` must follow."""
        member.size = member.charged()
        self._index(member)
        self._moved.setdefault(member.member_id, None)
        self.touch(member)

    def replace(self, old: Member, member: Member) -> None:
        """Replace a static member that left temporarily. The new one has its partitions and epoch."""
        self._unindex(old)
        self._moved.setdefault(old.member_id, old.client)
        self.holdings.replace(old.member_id, member.member_id)
        member.epoch = member.previous_epoch = old.epoch
        member.state = old.state
        member.topics, member.pattern, member.matched = old.topics, old.pattern, old.matched
        self.aimed[member.member_id] = self.aimed.pop(old.member_id, {})
        self.add(member)

    def remove(self, member: Member, turn: Turn) -> None:
        """Remove a member. Its partitions become free."""
        self._moved.setdefault(member.member_id, member.client)
        self._unindex(member)
        self.holdings.leave(member.member_id)
        self.aimed.pop(member.member_id, None)
        turn.cancel_timer(timers.session(member.member_id))
        turn.cancel_timer(timers.revocation(member.member_id))
        if member.pattern:
            turn.command(Resolve({member.member_id: ""}))
        if not self.members:
            self.empty_since_ms = turn.now_ms

    def forget_instances(self) -> None:
        """Remove all instances from a group without consumers. No epoch changes."""
        assert not self.members, "consumers need the owners"
        self.holdings = Holdings(self.holdings.epoch, self.holdings.target_epoch)
        self.instances.clear()
        self.assign = None

    def touch(self, member: Member) -> None:
        """Store a member with this turn."""
        self._changed.add(member.member_id)
        self._dropped.pop(f"{CONSUMER_FIELD}{member.member_id}", None)

    def resize(self, member: Member) -> None:
        """Charge a member whose data has changed, and store it."""
        self._member_bytes -= member.size
        member.size = member.charged()
        self._member_bytes += member.size
        self.touch(member)

    def use_classic(self, member: Member, join: Join) -> None:
        """Take over the details of a classic member's request."""
        self._count(member, -1)
        member.use_classic(join)
        self._count(member, 1)

    def protocol_for(self, protocols: Protocols, member: Member | None) -> str | None:
        """Return the first of these protocols that all classic members but this one support."""
        classic = member is not None and member.is_classic
        own = dict(member.protocols) if member is not None and classic else {}
        others = self.classic - classic
        return next((name for name, _ in protocols if self._protocols[name] - (name in own) == others), None)

    def prefer(self, member: Member, assignor: str) -> None:
        """Set the assignor that a member names."""
        if member.assignor is not None:
            self._assignors[member.assignor] -= 1
        member.assignor = assignor
        self._assignors[assignor] += 1

    def assignor(self, supported: tuple[str, ...]) -> str:
        """Return the assignor that most members name. Ties and no votes: the first supported one.

        Instances are always assigned by `uniform`: ranges would move partitions whose records are in flight.
        """
        if self.instances:
            return UNIFORM
        return max(supported, key=lambda name: self._assignors[name])

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call."""
        moved, self._moved = self._moved, {}
        members = self.members
        return Moved(
            {name: members[name].client for name, before in moved.items() if before is None and name in members},
            {name: before for name, before in moved.items() if before is not None and name not in members},
        )

    def take_changes(self) -> list[GroupChange]:
        """Return the changes for storage."""
        if not (self._changed or self._dropped or self.header is None or self._header_changed(self.header)):
            return []
        changes: list[GroupChange] = []
        epoch, target_epoch = self.holdings.epoch, self.holdings.target_epoch
        if self.header is None or self._header_changed(self.header):
            self.header = GroupHeader(
                generation=epoch,
                protocol_type=None,
                protocol=None,
                leader=None,
                empty_since_ms=self.empty_since_ms if not self.members else None,
                kind=GroupKind.CONSUMER,
                epoch=epoch,
                target_epoch=target_epoch,
            )
            changes.append(SaveHeader(self.header))
        changes += [SaveField(self.members[name].stored(self.holdings)) for name in sorted(self._changed)]
        changes += [DropField(field) for field in self._dropped]
        self._changed.clear()
        self._dropped.clear()
        return changes

    def _header_changed(self, header: GroupHeader) -> bool:
        holdings = self.holdings
        return header.epoch != holdings.epoch or header.target_epoch != holdings.target_epoch
