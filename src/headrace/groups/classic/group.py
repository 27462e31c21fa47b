"""The classic consumer group: a member assigns partitions, the server coordinates.

`groups.group.Group` contains it. Modules: `requests` (members' requests), `rebalance` (the join phase), `offset_commit`
(committed offsets), `membership` (their data).
"""

from collections.abc import Hashable, Iterable, Mapping

from headrace.groups import timers
from headrace.groups.classic import offset_commit, rebalance, requests, txn_offset_commit
from headrace.groups.classic.member import Member
from headrace.groups.classic.membership import Membership, OtherApis
from headrace.groups.classic.states import GroupState
from headrace.groups.description import GroupDescription, MemberDescription, Moved
from headrace.groups.effects import DeleteGroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import (
    ClassicEvent,
    ClassicRequest,
    Commit,
    DeleteGroup,
    DeleteOffsets,
    DropTopic,
    EndOffsets,
    Heartbeat,
    Join,
    Leave,
    Sync,
    TimerFired,
    TransactionLost,
    TxnOffsetCommit,
)
from headrace.groups.model import (
    DropGroup,
    GroupHeader,
    GroupSettings,
    OffsetAndMetadata,
    StoredGroup,
    StoredMember,
    TopicPartition,
)
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.timers import TimerKey, TimerKind
from headrace.groups.turn import Turn
from headrace.machines.deadlines import Deadlines


class ClassicGroup:
    """The classic part of a group. It shares the group's committed offsets and timers."""

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        positions: CommittedOffsets,
        deadlines: Deadlines[TimerKey],
        others: OtherApis,
    ) -> None:
        self.name = name
        self._settings = settings
        self._group = Membership(others)
        self._positions = positions
        self._deadlines = deadlines
        self._followed: GroupHeader | None = None
        """The last header of a newer kind."""

    def take_up(self, stored: StoredGroup, turn: Turn) -> None:
        """Restore the stored state, after the committed offsets.

        A stable group continues. A group that lost a member or had no assignment waits for its members to rejoin.
        Absent members expire.
        """
        self._restore_members(stored, turn)
        self.watch_offsets(turn)

    def _restore_members(self, stored: StoredGroup, turn: Turn) -> None:
        group, header = self._group, stored.header
        if header is None:
            return
        group.generation = header.generation
        group.protocol_type = header.protocol_type
        group.empty_since_ms = header.empty_since_ms
        for each in stored.members:
            member = Member.restore(each)
            group.add(member, header.protocol_type or "")
            rebalance.watch(member, turn)
        group.stored_as(header)
        if not group.members:
            group.empty_since_ms = turn.now_ms if header.empty_since_ms is None else header.empty_since_ms
            return
        group.protocol = header.protocol
        group.leader = header.leader if header.leader in group.members else None
        group.read_subscriptions()
        settled = not header.unsettled and group.leader is not None
        group.state = GroupState.STABLE if settled else GroupState.PREPARING_REBALANCE
        if not settled:
            turn.set_timer(timers.rebalance(), group.longest_rebalance_ms())

    def take(self, event: ClassicEvent, turn: Turn) -> None:
        """Handle one event."""
        match event:
            case TimerFired(key):
                if turn.take_timer(key):
                    self._fired(key, turn)
            case DropTopic():
                offset_commit.drop_topic(self._group, self._positions, self._settings, event, turn)
            case TransactionLost():
                if txn_offset_commit.lose(self._group, self._positions, self._settings, event, turn):
                    self._die(turn)
            case _:
                self._answer(event, turn)
        if self._group.has_departed:
            turn.save(*self._group.unsettled_changes())

    def watch_offsets(self, turn: Turn) -> None:
        """Update offset expiry after another API started or stopped keeping offsets."""
        offset_commit.schedule_retention(self._group, self._positions, self._settings, turn)

    def end_if_nothing(self, turn: Turn) -> None:
        """End the group if it is empty, after another API stopped using it."""
        if offset_commit.is_nothing(self._group, self._positions):
            turn.save(DropGroup())
            self._die(turn)

    def follow(self, header: GroupHeader, *, used: bool, turn: Turn) -> None:
        """Continue from the epoch of a group of a newer kind, which stores its own header. `used`: it has members."""
        group = self._group
        if header is self._followed:
            return
        emptied = self._followed is None or (group.empty_since_ms is None) is not used
        self._followed = header
        group.generation = header.generation
        group.empty_since_ms = header.empty_since_ms
        group.stored_as(header)
        if emptied:
            self.watch_offsets(turn)
        elif len(self._positions) and not turn.has_timer(timers.retention()):
            # A topic may have lost its subscription. A pass over all offsets for each change is too much.
            turn.set_timer(timers.retention(), self._settings.retention_check_interval_ms)

    def commit(
        self,
        request: Commit | TxnOffsetCommit,
        refused: GroupError | Mapping[TopicPartition, GroupError],
        turn: Turn,
    ) -> None:
        """Commit as a group of a newer kind has decided: reject all, or some partitions."""
        if isinstance(refused, GroupError):
            turn.refuse(request, refused)
        elif isinstance(request, Commit):
            offset_commit.apply(self._group, self._positions, self._settings, request, turn, refused)
        else:
            txn_offset_commit.apply(self._positions, self._settings, request, turn, refused)

    def uses(self, topic: str) -> bool:
        """Return whether members may read a topic."""
        return bool(self._group.members) and (self._group.subscribed is None or topic in self._group.subscribed)

    def _answer(self, request: ClassicRequest, turn: Turn) -> None:
        if self._group.state is GroupState.DEAD:
            # The client retries, and finds or creates a live group.
            turn.refuse(request, GroupError.COORDINATOR_NOT_AVAILABLE)
            return
        if not self.name and isinstance(request, Join | Sync | Heartbeat | Leave):
            turn.refuse(request, GroupError.INVALID_GROUP_ID)
            return
        group, positions, settings = self._group, self._positions, self._settings
        match request:
            case Join():
                requests.join(group, settings, request, turn)
            case Sync():
                if requests.sync(group, request, turn):
                    offset_commit.schedule_retention(group, positions, settings, turn)
            case Heartbeat():
                requests.heartbeat(group, request, turn)
            case Leave():
                requests.leave(group, settings, request, turn)
            case DeleteGroup():
                self._delete(request, turn)
            case _:
                self._change_offsets(request, turn)
        self._watch_emptiness(turn)

    def _change_offsets(self, request: Commit | TxnOffsetCommit | EndOffsets | DeleteOffsets, turn: Turn) -> None:
        group, positions, settings = self._group, self._positions, self._settings
        match request:
            case Commit():
                offset_commit.commit(group, positions, settings, request, turn)
            case TxnOffsetCommit():
                txn_offset_commit.store(group, positions, settings, request, turn)
            case EndOffsets():
                if txn_offset_commit.end(group, positions, settings, request, turn):
                    self._die(turn)
            case DeleteOffsets():
                offset_commit.delete_offsets(group, positions, settings, request, turn)

    def _fired(self, key: TimerKey, turn: Turn) -> None:
        group, settings = self._group, self._settings
        match key.kind:
            case TimerKind.SESSION:
                requests.session_over(group, settings, key.member_id, turn)
            case TimerKind.PENDING:
                requests.pending_over(group, key.member_id, turn)
            case TimerKind.JOIN:
                rebalance.join_time_over(group, settings, turn)
            case TimerKind.SYNC:
                rebalance.sync_time_over(group, settings, turn)
            case TimerKind.RETENTION:
                if offset_commit.retention_over(group, self._positions, settings, turn):
                    self._die(turn)
        self._watch_emptiness(turn)

    def _watch_emptiness(self, turn: Turn) -> None:
        if self._group.state is GroupState.EMPTY and not turn.has_timer(timers.retention()):
            offset_commit.schedule_retention(self._group, self._positions, self._settings, turn)

    def _delete(self, request: DeleteGroup, turn: Turn) -> None:
        if not offset_commit.exists(self._group, self._positions):
            turn.refuse(request, GroupError.GROUP_ID_NOT_FOUND)
        elif self._group.state is not GroupState.EMPTY or self._group.others.any_read:
            turn.refuse(request, GroupError.NON_EMPTY_GROUP)
        else:
            turn.save(DropGroup())
            self._die(turn)
            turn.reply(request.token, DeleteGroupResult())

    def _die(self, turn: Turn) -> None:
        self._deadlines.cancel_all()
        self._positions.clear()
        self._group.move_to(GroupState.DEAD)

    @property
    def protocol_type(self) -> str | None:
        """Type of its members' protocols."""
        return self._group.protocol_type

    @property
    def protocol(self) -> str | None:
        """Protocol of this generation."""
        return self._group.protocol

    def stored_members(self) -> list[StoredMember]:
        """Return all members as stored."""
        return [member.stored() for member in self._group.members.values()]

    def dissolve(self, turn: Turn) -> None:
        """Give all members of a stable group to a consumer group."""
        for member_id in sorted(self._group.pending):
            rebalance.forget_pending(self._group, member_id, turn)
        for member_id in self._group.members:
            turn.cancel_timer(timers.session(member_id))
        turn.save(*self._group.dissolve())

    def adopt(self, members: Iterable[StoredMember], generation: int, turn: Turn) -> None:
        """Take the members of a consumer group, and let them rebalance."""
        restored = [Member.restore(each) for each in members]
        turn.save(*self._group.adopt(restored, generation))
        self._followed = None
        for member in restored:
            rebalance.watch(member, turn)
        rebalance.rebalance(self._group, self._settings, turn)
        self.watch_offsets(turn)

    @property
    def exists(self) -> bool:
        """Whether it has members, committed offsets or sections, or had members and is not expired."""
        group = self._group
        return bool(group.pending) or group.others.has_sections or offset_commit.exists(group, self._positions)

    @property
    def state(self) -> GroupState:
        """The group's state."""
        return self._group.state

    @property
    def generation(self) -> int:
        """Current generation. 0: none yet."""
        return self._group.generation

    def may_go_on(self, request: Heartbeat) -> bool:
        """Return whether a heartbeat would succeed."""
        return requests.heartbeat_error(self._group, request) is None

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call."""
        return self._group.take_moved()

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._group.members)

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics of this generation's subscriptions. None: unknown."""
        return self._group.subscribed

    def held_tokens(self) -> tuple[Hashable, ...]:
        """Return tokens of waiting requests."""
        return tuple(request.token for request in self._group.held())

    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a view of all committed offsets."""
        return self._positions.all()

    @property
    def described_bytes(self) -> int:
        """Approximate bytes of a description."""
        return self._group.member_bytes

    @property
    def member_bytes(self) -> int:
        """See `Membership.member_bytes`."""
        return self._group.member_bytes

    def describe(self) -> GroupDescription:
        """Return the description. Metadata and assignments are included only in Stable."""
        group = self._group
        stable = group.state is GroupState.STABLE
        protocol = (group.protocol or "") if stable else ""
        members = tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(protocol) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        )
        return GroupDescription(
            name=self.name,
            state=group.state,
            generation=group.generation,
            protocol_type=group.protocol_type or "",
            protocol=protocol,
            leader=group.leader,
            members=members,
        )
