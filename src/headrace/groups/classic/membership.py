"""Members and generation of a classic group.

It keeps counts and indexes consistent and decides nothing. Operations per request are O(1); others take at most one
pass over the members.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from headrace.groups.classic.member import Member, Protocols
from headrace.groups.classic.states import GroupState, check_transition
from headrace.groups.consumer_subscription import CONSUMER_PROTOCOL, subscribed_topics
from headrace.groups.description import Client, Moved
from headrace.groups.effects import JoinMember
from headrace.groups.errors import GroupError
from headrace.groups.events import Join, Sync
from headrace.groups.model import DropMember, GroupChange, GroupHeader, SaveHeader, SaveMember

_PROTOCOL_BYTES = 100
"""Bytes charged per protocol for Python objects."""

MEMBER_BYTES = 500
"""Bytes charged per member in addition to its data."""


def size_of(told: Join | Member) -> int:
    """Return the bytes charged for a member."""
    size = sum(_PROTOCOL_BYTES + len(name.encode()) + len(metadata) for name, metadata in told.protocols)
    size += 2 * len(told.client_id.encode())
    return size if told.instance_id is None else size + 2 * len(told.instance_id.encode())


class OtherApis(Protocol):
    """Use of the same group by other APIs."""

    def has_section(self, topic: str) -> bool:
        """Return whether they keep offsets of a topic."""

    def is_read(self, topic: str) -> bool:
        """Return whether they have members that read a topic."""

    @property
    def has_sections(self) -> bool:
        """Whether they keep offsets of any topic."""

    @property
    def any_read(self) -> bool:
        """Whether they read any topic."""


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
        """Assigned ids that have not joined yet."""
        self.pending_sync: set[str] = set()
        """Members of this generation that have not synced yet."""
        self.initial_remaining_ms: int | None = None
        """Remaining initial rebalance delay of an empty group (ms)."""
        self.newcomer_seen = False
        """Whether a member joined during the current initial delay."""
        self.subscribed: frozenset[str] | None = frozenset()
        """Topics of this generation's subscriptions. None: unknown."""
        self._moved: dict[str, Client | None] = {}
        """Changed ids -> previous client; None: it was not a member."""
        self._instances: dict[str, str] = {}
        self._supporters: Counter[str] = Counter()
        self.metadata_bytes = 0
        """Bytes of all members' metadata, as counted by `size_of`."""
        self.assigned_bytes = 0
        """Bytes of all assignments."""
        self._pending_bytes = 0
        self._waiting_joins = 0
        self._stored: set[str] = set()
        self._departed: list[str] = []
        self._stored_unsettled = False
        self._stored_generation: int | None = None

    def __len__(self) -> int:
        return len(self.members)

    @property
    def waiting_joins(self) -> int:
        """Number of members with a held join."""
        return self._waiting_joins

    @property
    def all_joined(self) -> bool:
        """Whether every member has rejoined and no assigned id is pending."""
        return self._waiting_joins == len(self.members) and not self.pending

    @property
    def member_bytes(self) -> int:
        """Approximate bytes of members and pending ids."""
        return self.metadata_bytes + self.assigned_bytes + self._pending_bytes + MEMBER_BYTES * len(self.members)

    def instance(self, instance_id: str | None) -> str | None:
        """Return the current member id of a static instance."""
        return None if instance_id is None else self._instances.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> GroupError | None:
        """Return why a member's request is invalid: unknown, or fenced by another member."""
        if instance_id is not None:
            owner = self._instances.get(instance_id)
            if owner is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return GroupError.FENCED_INSTANCE_ID
        return None if member_id in self.members else GroupError.UNKNOWN_MEMBER_ID

    def longest_rebalance_ms(self) -> int:
        """Return the largest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def join_members(self) -> tuple[JoinMember, ...]:
        """Return the members as shown to the leader."""
        protocol = self.protocol or ""
        return tuple(
            JoinMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )

    def move_to(self, state: GroupState) -> None:
        """Enter a state. Raises IllegalTransitionError for an invalid transition."""
        check_transition(self.state, state)
        self.state = state

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first one sets the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        self._moved.setdefault(member.member_id, None)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.member_id
        self._count(member, 1)
        self.withdraw(member.member_id)

    def give_out(self, member_id: str) -> None:
        """Record an id assigned to a new member."""
        if member_id not in self.pending:
            self.pending.add(member_id)
            self._pending_bytes += MEMBER_BYTES + len(member_id.encode())

    def withdraw(self, member_id: str) -> None:
        """Forget an assigned id, if it exists."""
        if member_id in self.pending:
            self.pending.remove(member_id)
            self._pending_bytes -= MEMBER_BYTES + len(member_id.encode())

    def remove(self, member_id: str) -> Member:
        """Remove a member. The caller answers its requests."""
        member = self.members.pop(member_id)
        self._moved.setdefault(member_id, _client(member))
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
        """Return members that joined or left since the last call."""
        moved, self._moved = self._moved, {}
        members = self.members
        came = [members[name] for name, before in moved.items() if before is None and name in members]
        return Moved(
            {member.member_id: _client(member) for member in came},
            {name: before for name, before in moved.items() if before is not None and name not in members},
        )

    def replace(self, old_id: str, member: Member) -> None:
        """Replace a static member with its new id, including leadership and pending sync."""
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

    def dissolve(self) -> list[GroupChange]:
        """Remove all members, which move to a consumer group. Return what storage must remove."""
        for member_id in list(self.members):
            self.remove(member_id)
        changes: list[GroupChange] = [DropMember(member_id) for member_id in self._departed]
        self._forget()
        self.state, self.protocol, self.subscribed = GroupState.EMPTY, None, frozenset()
        return changes

    def adopt(self, members: Iterable[Member], generation: int) -> list[GroupChange]:
        """Take over the members of a consumer group. Return what storage must add."""
        for member in members:
            self.add(member, CONSUMER_PROTOCOL)
        self._forget()
        self.generation, self.empty_since_ms, self.state = generation, None, GroupState.STABLE
        self._stored = set(self.members)
        self.protocol = self.select_protocol()
        self.read_subscriptions()
        header = self._save_header(unsettled=True)
        return [header, *(SaveMember(member.stored()) for member in self.members.values())]

    def _forget(self) -> None:
        self._stored.clear()
        self._departed.clear()
        self._moved.clear()
        self.pending_sync.clear()
        self.leader = self.initial_remaining_ms = None

    def update(self, member: Member, join: Join) -> None:
        """Update a member's data from its request."""
        self._count(member, -1)
        member.protocols = join.protocols
        self._count(member, 1)
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
        member.client_id = join.client_id
        member.client_host = join.client_host

    def hold_join(self, member: Member, join: Join) -> Join | None:
        """Hold a join until the phase ends. Return the join that it replaces, if any."""
        previous, member.held_join = member.held_join, join
        if previous is None:
            self._waiting_joins += 1
        return previous

    def release_join(self, member: Member) -> Join | None:
        """Release a member's join, which must then be answered."""
        join, member.held_join = member.held_join, None
        if join is not None:
            self._waiting_joins -= 1
        return join

    def elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, else elect the oldest member that has. Return False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is None or leader.held_join is None:
            joined = next((m for m in self.members.values() if m.held_join is not None), None)
            if joined is None:
                return False
            self.leader = joined.member_id
        return True

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Set all assignments."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.assigned_bytes = sum(len(member.assignment) for member in self.members.values())

    def begin_generation(self) -> None:
        """Increment the generation and choose its protocol."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.pending_sync.clear()
        self.initial_remaining_ms = None
        self.read_subscriptions()

    def read_subscriptions(self) -> None:
        """Read the topics that members of this generation subscribe to."""
        if self.members and (self.protocol_type != CONSUMER_PROTOCOL or self.protocol is None):
            self.subscribed = None
        else:
            protocol = self.protocol or ""
            self.subscribed = subscribed_topics(member.metadata(protocol) for member in self.members.values())

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether these protocols are compatible with the group."""
        if not self.members:
            return bool(protocol_type and protocols)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == len(self.members) for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol with most votes among common ones. The leader's preference breaks ties."""
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

    def held(self) -> Iterator[Join | Sync]:
        """Yield all held requests."""
        for member in self.members.values():
            if member.held_join is not None:
                yield member.held_join
            if member.held_sync is not None:
                yield member.held_sync

    @property
    def is_stored(self) -> bool:
        """Whether the group's header is stored."""
        return self._stored_generation is not None

    @property
    def has_departed(self) -> bool:
        """Whether storage still has removed members."""
        return bool(self._departed)

    def stored_as(self, header: GroupHeader | None) -> None:
        """Record what storage has, after a restart."""
        self._stored_generation = None if header is None else header.generation
        self._stored_unsettled = header is not None and header.unsettled
        self._stored = set(self.members)

    def generation_changes(self) -> list[GroupChange]:
        """Return all state to store, when a generation is assigned or the group is empty."""
        gone = self._stored.difference(self.members)
        changes: list[GroupChange] = [self._save_header(unsettled=False)]
        changes.extend(SaveMember(member.stored()) for member in self.members.values())
        changes.extend(DropMember(member_id) for member_id in sorted(gone))
        self._stored = set(self.members)
        self._departed.clear()
        return changes

    def replacement_changes(self, member: Member) -> list[GroupChange]:
        """Return changes to store when a static member got a new id within a generation."""
        changes: list[GroupChange] = [self._save_header(unsettled=False), SaveMember(member.stored())]
        changes.extend(DropMember(member_id) for member_id in self._departed)
        self._stored.add(member.member_id)
        self._stored.difference_update(self._departed)
        self._departed.clear()
        return changes

    def unsettled_changes(self) -> list[GroupChange]:
        """Return changes to store for removed members and a generation without assignment.

        A generation is stored as it begins, so that no number is used twice after a restart.
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


def _client(member: Member) -> Client:
    return Client(member.client_id, member.client_host, member.session_timeout_ms, member.rebalance_timeout_ms)
