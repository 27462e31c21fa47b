"""Who is in a classic group, and what it has agreed on.

Rule of this file: it keeps the counts and indexes true and decides nothing; `requests` and `rebalance` do
that. Nothing here is slower than one pass over the members, and what runs per request is O(1).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from headrace.groups.classic.member import Member, Protocols
from headrace.groups.classic.states import GroupState, check_transition
from headrace.groups.consumer_subscription import subscribed_topics
from headrace.groups.effects import JoinMember
from headrace.groups.errors import GroupError
from headrace.groups.events import Join, Sync
from headrace.groups.model import DropMember, GroupChange, GroupHeader, SaveHeader, SaveMember

CONSUMER_PROTOCOL = "consumer"
_PROTOCOL_BYTES = 100
"""Counted for each protocol of a member beside its own bytes: Python's objects."""

MEMBER_BYTES = 500
"""Counted for each member in addition to what it says of itself."""


def size_of(told: Join | Member) -> int:
    """Bytes that a member is counted with: its protocols, and the names with which its id may begin."""
    size = sum(_PROTOCOL_BYTES + len(name.encode()) + len(metadata) for name, metadata in told.protocols)
    size += 2 * len(told.client_id.encode())
    return size if told.instance_id is None else size + 2 * len(told.instance_id.encode())


class OtherApis(Protocol):
    """What a classic group must know of those who use the same group in another way."""

    def has_section(self, topic: str) -> bool:
        """Whether positions in a topic are theirs, too."""

    def is_read(self, topic: str) -> bool:
        """Whether they have members that read a topic."""

    @property
    def has_sections(self) -> bool:
        """Whether any topic is kept."""

    @property
    def any_read(self) -> bool:
        """Whether any topic is read."""


class Moved(NamedTuple):
    """Members by id, with their client's id and host."""

    came: dict[str, tuple[str, str]]
    went: dict[str, tuple[str, str]]


class Membership:
    """Members, pending members, state and generation of one classic group."""

    def __init__(self, others: OtherApis) -> None:
        self.others = others
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.empty_since_ms: int | None = None
        self.members: dict[str, Member] = {}
        self.pending: set[str] = set()
        """Ids that were given out and not used yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.initial_remaining_ms: int | None = None
        """While an empty group gathers its first members: how much longer it may (ms)."""
        self.newcomer_seen = False
        """Somebody came during the present initial delay."""
        self.subscribed: frozenset[str] | None = frozenset()
        """Topics the members of this generation read; None when that cannot be told."""
        self._moved: dict[str, tuple[str, str] | None] = {}
        """Ids that came or went since they were asked for -> the client's id and host before; None: it was not in."""
        self._instances: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.metadata_bytes = 0
        """What the members say of themselves together, as `size_of` counts it."""
        self.assigned_bytes = 0
        """The members' assignments together."""
        self._pending_bytes = 0
        self._waiting_joins = 0
        self._stored: set[str] = set()
        self._departed: list[str] = []
        self._stored_unsettled = False
        self._stored_generation: int | None = None

    # who is there

    def __len__(self) -> int:
        return len(self.members)

    @property
    def waiting_joins(self) -> int:
        """How many members have a join held."""
        return self._waiting_joins

    @property
    def all_joined(self) -> bool:
        """Every member has rejoined, and nobody who was told an id is still to come."""
        return self._waiting_joins == len(self.members) and not self.pending

    @property
    def member_bytes(self) -> int:
        """About how many bytes all members take, with the ids that were given out."""
        return self.metadata_bytes + self.assigned_bytes + self._pending_bytes + MEMBER_BYTES * len(self.members)

    def instance(self, instance_id: str | None) -> str | None:
        """The member id that now stands for a static instance."""
        return None if instance_id is None else self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> GroupError | None:
        """Why a member may not speak for itself: unknown, or its instance belongs to another by now."""
        if instance_id is not None:
            owner = self._instances.get(instance_id)
            if owner is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return GroupError.FENCED_INSTANCE_ID
        return None if member_id in self.members else GroupError.UNKNOWN_MEMBER_ID

    def longest_rebalance_ms(self) -> int:
        """The largest rebalance timeout among the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def join_members(self) -> tuple[JoinMember, ...]:
        """What the leader gets to see."""
        protocol = self.protocol or ""
        return tuple(
            JoinMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )

    # changes

    def move_to(self, state: GroupState) -> None:
        """Enter a state; raises IllegalTransitionError when that may not follow the present one."""
        check_transition(self.state, state)
        self.state = state

    def add(self, member: Member, protocol_type: str) -> None:
        """Take a member in. The first one decides the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._moved.setdefault(member.member_id, None)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._count(member, 1)
        self.withdraw(member.member_id)

    def give_out(self, member_id: str) -> None:
        """Remember an id that a newcomer is to join with."""
        if member_id not in self.pending:
            self.pending.add(member_id)
            self._pending_bytes += MEMBER_BYTES + len(member_id.encode())

    def withdraw(self, member_id: str) -> None:
        """Forget an id that was given out, if it was."""
        if member_id in self.pending:
            self.pending.remove(member_id)
            self._pending_bytes -= MEMBER_BYTES + len(member_id.encode())

    def remove(self, member_id: str) -> Member:
        """Take a member out. The caller has answered what it waits for."""
        member = self.members.pop(member_id)
        self._moved.setdefault(member_id, (member.client_id, member.client_host))
        if member.held_join is not None:
            self._waiting_joins -= 1
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._count(member, -1)
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = None
        if member_id in self._stored:
            self._departed.append(member_id)
        return member

    def take_moved(self) -> Moved:
        """Who has come and who has gone since this was asked last."""
        moved, self._moved = self._moved, {}
        members = self.members
        came = [members[name] for name, before in moved.items() if before is None and name in members]
        return Moved(
            {member.member_id: (member.client_id, member.client_host) for member in came},
            {name: before for name, before in moved.items() if before is not None and name not in members},
        )

    def replace(self, old_id: str, member: Member) -> None:
        """Put a static member's new life in the place of the old one, leadership and pending sync included."""
        leads = self.leader == old_id
        owes_sync = old_id in self.pending_sync
        old = self.remove(old_id)
        member.assignment = old.assignment
        member.is_new = False
        self.add(member, self.protocol_type or "")
        if leads:
            self.leader = member.member_id
        if owes_sync:
            self.pending_sync.add(member.member_id)

    def update(self, member: Member, join: Join) -> None:
        """Take over what a known member now says of itself."""
        self._count(member, -1)
        member.protocols = join.protocols
        self._count(member, 1)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host

    def hold_join(self, member: Member, join: Join) -> Join | None:
        """Keep a join until the phase ends; the one it takes the place of, if any."""
        previous, member.held_join = member.held_join, join
        if previous is None:
            self._waiting_joins += 1
        return previous

    def release_join(self, member: Member) -> Join | None:
        """Stop holding the member's join, which is then to be answered."""
        join, member.held_join = member.held_join, None
        if join is not None:
            self._waiting_joins -= 1
        return join

    def elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, else take the longest-standing member that has; False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.held_join is None:
            joined = next((m for m in self.members.values() if m.held_join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give every member its assignment."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.assigned_bytes = sum(len(member.assignment) for member in self.members.values())

    def begin_generation(self) -> None:
        """Count up, and choose the protocol of the members that are now in."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.pending_sync.clear()
        self.initial_remaining_ms = None
        self.read_subscriptions()

    def read_subscriptions(self) -> None:
        """Find out which topics the members of this generation read."""
        if self.members and (self.protocol_type != CONSUMER_PROTOCOL or self.protocol is None):
            self.subscribed = None
        else:
            protocol = self.protocol or ""
            self.subscribed = subscribed_topics(member.metadata(protocol) for member in self.members.values())

    # protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could be in the group."""
        if not self.members:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with most votes among those that all have; a tie goes to the leader's favourite."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        if len(candidates) == 1:
            return next(iter(candidates))
        votes = Counter(member.vote(candidates) for member in self.members.values())
        judge = self.members.get(self.leader or "") or next(iter(self.members.values()))
        return max((name for name, _ in judge.protocols if name in candidates), key=lambda name: votes[name])

    def _count(self, member: Member, step: int) -> None:
        self.metadata_bytes += step * size_of(member)
        self.assigned_bytes += step * len(member.assignment)
        for name in {name for name, _ in member.protocols}:
            self._supporters[name] += step
            if not self._supporters[name]:
                del self._supporters[name]

    # held requests

    def held(self) -> Iterator[Join | Sync]:
        """Every request that waits for an answer."""
        for member in self.members.values():
            if member.held_join is not None:
                yield member.held_join
            if member.held_sync is not None:
                yield member.held_sync

    # what storage knows

    @property
    def is_stored(self) -> bool:
        """Whether storage has the group's header."""
        return self._stored_generation is not None

    @property
    def has_departed(self) -> bool:
        """Whether storage still has members that are gone."""
        return bool(self._departed)

    def stored_as(self, header: GroupHeader | None) -> None:
        """Remember what storage has, after a restart."""
        self._stored_generation = None if header is None else header.generation
        self._stored_unsettled = header is not None and header.unsettled
        self._stored = set(self.members)

    def generation_changes(self) -> list[GroupChange]:
        """What storage must learn when a generation is assigned, or the group is empty: everything."""
        gone = self._stored.difference(self.members)
        changes: list[GroupChange] = [self._save_header(unsettled=False)]
        changes.extend(SaveMember(member.stored()) for member in self.members.values())
        changes.extend(DropMember(member_id) for member_id in sorted(gone))
        self._stored = set(self.members)
        self._departed.clear()
        return changes

    def replacement_changes(self, member: Member) -> list[GroupChange]:
        """What storage must learn when a static member got a new id and the generation goes on."""
        changes: list[GroupChange] = [self._save_header(unsettled=False), SaveMember(member.stored())]
        changes.extend(DropMember(member_id) for member_id in self._departed)
        self._stored.add(member.member_id)
        self._stored.difference_update(self._departed)
        self._departed.clear()
        return changes

    def unsettled_changes(self) -> list[GroupChange]:
        """What storage must learn of a generation that has no assignment yet, and of members that went.

        Generations are stored as they begin: after a restart a number is never used a second time.
        """
        known = self._stored_unsettled and self._stored_generation == self.generation
        if known and not self._departed:
            return []
        changes: list[GroupChange] = [] if known else [self._save_header(unsettled=True)]
        changes.extend(DropMember(member_id) for member_id in self._departed)
        self._stored.difference_update(self._departed)
        self._departed.clear()
        return changes

    def _save_header(self, *, unsettled: bool) -> SaveHeader:
        self._stored_unsettled = unsettled
        self._stored_generation = self.generation
        header = GroupHeader(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            empty_since_ms=self.empty_since_ms,
            unsettled=unsettled,
        )
        return SaveHeader(header)
