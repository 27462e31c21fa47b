"""A share group's members, their assignments, and the epochs of its share partitions' states (KIP-932).

Members do not give partitions up, so there is no reconciliation: a member gets the target assignment with its next
heartbeat. An empty group stays until it is deleted.
"""

from collections.abc import Iterable, Mapping
from uuid import UUID

import msgspec

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import Configs
from headrace.groups.consumers.events import Assigned, ConsumerNotice, ConsumerRequest, TopicsChanged
from headrace.groups.consumers.target import AGAIN_MS
from headrace.groups.description import Client, GroupDescription, Moved, described_as_share
from headrace.groups.effects import DeleteGroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DeleteGroup, DropTopic, TimerFired, TxnOffsetCommit
from headrace.groups.model import (
    LEAVE_EPOCH,
    Assignment,
    DropField,
    DropGroup,
    GroupHeader,
    GroupKind,
    GroupSettings,
    SaveField,
    SaveHeader,
    StoredGroup,
    TopicFacts,
    TopicPartition,
)
from headrace.groups.sharing.events import (
    AlterShareOffsets,
    DeleteShareOffsets,
    PartitionState,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareOffsetsResult,
    fault,
)
from headrace.groups.sharing.member import Assigned as Given
from headrace.groups.sharing.member import Sharer, charged
from headrace.groups.sharing.model import StoredSharer, StoredShareTopic
from headrace.groups.sharing.target import Target
from headrace.groups.timers import TimerKey, TimerKind
from headrace.groups.turn import Turn
from headrace.machines.deadlines import Deadlines

ShareEvent = (
    ShareHeartbeat | AlterShareOffsets | DeleteShareOffsets | DeleteGroup | TimerFired | TopicsChanged | DropTopic
)


class ShareGroup:
    """The members of a group of kind `share`."""

    def __init__(self, name: str, settings: GroupSettings, configs: Configs, deadlines: Deadlines[TimerKey]) -> None:
        self.name = name
        self.members: dict[str, Sharer] = {}
        self.topics: dict[str, StoredShareTopic] = {}
        """Topics with states, by name."""
        self.epoch = 0
        self.target_epoch = 0
        self.exists = False
        """Whether the group is stored."""
        self.header: GroupHeader | None = None
        """The header as it is or will be stored."""
        self._moved = Moved({}, {})
        self._settings = settings
        self._configs = configs
        self._deadlines = deadlines
        self._facts: dict[str, TopicFacts] = {}
        """Existing topics that members have subscribed to."""
        self._target = Target()
        self._state_epoch = 0

    def restore(self, stored: StoredGroup, turn: Turn) -> None:
        """Continue from the stored state. Members keep their epochs and get whole sessions. Sets timers only."""
        header = stored.header
        if header is None:
            return
        self.exists, self.header = True, header
        self.epoch, self.target_epoch = header.epoch, header.target_epoch
        for field in stored.fields:
            if isinstance(field, StoredSharer):
                self.members[field.member_id] = Sharer(field)
                self._watch(field.member_id, turn)
            elif isinstance(field, StoredShareTopic):
                self.topics[field.topic] = field
                self._facts[field.topic] = TopicFacts(field.topic_id, field.partitions)
                self._state_epoch = max(self._state_epoch, field.epoch, *field.altered.values())
        self._target.shares = {member_id: dict(member.assigned) for member_id, member in self.members.items()}
        if any(member.epoch != self.target_epoch for member in self.members.values()):
            # The target of the others is not stored. It may have partitions that no member has now.
            self.epoch = max(self.epoch, self.target_epoch + 1)
        if self.epoch > self.target_epoch:
            turn.set_timer(timers.target(), 0)

    def take(self, event: ShareEvent | ConsumerRequest | ConsumerNotice, turn: Turn) -> None:
        """Handle one event."""
        match event:
            case ShareHeartbeat():
                self._heartbeat(event, turn)
            case AlterShareOffsets():
                self._alter(event, turn)
            case DeleteShareOffsets():
                self._delete_offsets(event, turn)
            case DeleteGroup():
                self._delete(event, turn)
            case TimerFired(key):
                if turn.take_timer(key):
                    self._fired(key, turn)
            case TopicsChanged(facts):
                self._learn(facts, turn)
            case Assigned():
                self._assigned(event, turn)
            case DropTopic():
                self._drop_topic(event, turn)

    # Members

    def _heartbeat(self, request: ShareHeartbeat, turn: Turn) -> None:
        problem = self._problem(request, turn)
        if problem is not None:
            turn.reply(
                request.token,
                ShareHeartbeatResult(error=problem[0], message=problem[1], member_id=request.member_id),
            )
            return
        if request.member_epoch == LEAVE_EPOCH:
            self._remove(request.member_id, turn)
            turn.reply(request.token, ShareHeartbeatResult(member_id=request.member_id, member_epoch=LEAVE_EPOCH))
            return
        member = self.members.get(request.member_id)
        if member is None:
            member = self.members[request.member_id] = Sharer.joining(request)
            self._moved.came[member.member_id] = self._client(member)
        before = member.stored
        changed = member.update(request) or not self.exists or member.epoch == 0
        if changed:
            self._forget_unread()
        changed = self._note(request.topics or (), request.facts) or changed
        self._aim(turn, changed=changed)
        moved = member.epoch != self.target_epoch
        if moved:
            member.move_to(self.target_epoch, self._target.shares.get(member.member_id, {}))
        if member.stored != before:
            turn.save(SaveField(member.stored))
        self._watch(member.member_id, turn)
        whole = request.member_epoch != member.epoch or request.topics is not None
        turn.reply(request.token, self._result(member, whole=whole))

    def _problem(self, request: ShareHeartbeat, turn: Turn) -> tuple[GroupError, str] | None:
        invalid = fault(request)
        if invalid:
            return GroupError.INVALID_REQUEST, invalid
        member = self.members.get(request.member_id)
        if request.member_epoch == 0:
            return self._no_room(request, member, turn)
        if not self.exists:
            return GroupError.GROUP_ID_NOT_FOUND, f"Share group {self.name} not found."
        if member is None:
            return (
                GroupError.UNKNOWN_MEMBER_ID,
                f"Member {request.member_id} is not a member of group {self.name}.",
            )
        if request.member_epoch not in {LEAVE_EPOCH, member.epoch, member.previous_epoch}:
            fenced = (
                f"The member epoch {request.member_epoch} is neither the present one ({member.epoch}) nor the previous "
                f"one ({member.previous_epoch}). The member must give up its partitions and join again."
            )
            return GroupError.FENCED_MEMBER_EPOCH, fenced
        grows = request.member_epoch != LEAVE_EPOCH and (request.topics is not None or request.rack_id is not None)
        return self._no_room(request, member, turn) if grows else None

    def _no_room(self, request: ShareHeartbeat, member: Sharer | None, turn: Turn) -> tuple[GroupError, str] | None:
        most = self._settings.newer.share_max_size
        if member is None and len(self.members) >= most:
            return (
                GroupError.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {most} members.",
            )
        topics: frozenset[str] | tuple[str, ...] | None = request.topics
        rack_id = request.rack_id
        if member is not None:
            topics = member.topics if topics is None else topics
            rack_id = member.rack_id if rack_id is None else rack_id
        growth = charged(request.member_id, rack_id, topics or ()) - (0 if member is None else member.size)
        if growth <= 0:
            return None
        full = self.member_bytes + growth > self._settings.max_metadata_bytes or not turn.may_grow(growth)
        return (GroupError.GROUP_MAX_SIZE_REACHED, "The subscription is too large.") if full else None

    def _result(self, member: Sharer, *, whole: bool) -> ShareHeartbeatResult:
        assignment, states = self._given(member.assigned) if whole else (None, ())
        return ShareHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.epoch,
            waits=self.target_epoch < self.epoch,
            assignment=assignment,
            states=states,
        )

    def _given(self, assigned: Given) -> tuple[Assignment, tuple[PartitionState, ...]]:
        assignment: list[tuple[UUID, tuple[int, ...]]] = []
        states: list[PartitionState] = []
        for name, indexes in assigned.items():
            topic = self.topics.get(name)
            if topic is None:
                continue
            assignment.append((topic.topic_id, indexes))
            states += _states(topic, indexes)
        return tuple(assignment), tuple(states)

    def may_go_on(self, request: ShareHeartbeat) -> bool:
        """Return whether a heartbeat would succeed and change nothing, not even the response."""
        member = self.members.get(request.member_id)
        return (
            member is not None
            and 0 < request.member_epoch == member.epoch == self.target_epoch == self.epoch
            and request.topics is None
            and request.rack_id in {None, member.rack_id}
        )

    def going_on(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """Return the response to a heartbeat that changes nothing."""
        return ShareHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def _watch(self, member_id: str, turn: Turn) -> None:
        turn.set_timer(timers.session(member_id), self._configs.of(self.name).share_session_timeout_ms)

    def _remove(self, member_id: str, turn: Turn) -> None:
        member = self.members.pop(member_id)
        self._target.shares.pop(member_id, None)
        turn.cancel_timer(timers.session(member_id))
        turn.save(DropField(member.stored.field))
        self._moved.went[member_id] = self._client(member)
        self._forget_unread()
        self._aim(turn, changed=True)

    def _client(self, member: Sharer) -> Client:
        return Client(member.client_id, member.client_host, self._configs.of(self.name).share_session_timeout_ms)

    def _fired(self, key: TimerKey, turn: Turn) -> None:
        if key.kind is TimerKind.TARGET:
            self._aim(turn)
        elif key.kind is TimerKind.SESSION and key.member_id in self.members:
            self._remove(key.member_id, turn)

    # Assignments

    def _aim(self, turn: Turn, *, changed: bool = False) -> None:
        """Raise the group's epoch if something `changed`, and compute a target as soon as the interval allows."""
        if changed:
            self.epoch += 1
        if self.epoch > self.target_epoch and not self._target.is_computing:
            due_ms = self._target.due_ms(turn.ticks_ms, self._configs.of(self.name).share_assignment_interval_ms)
            if due_ms <= turn.ticks_ms or not self.members:
                turn.cancel_timer(timers.target())
                self._compute(turn)
            elif not turn.has_timer(timers.target()):
                turn.set_timer(timers.target(), due_ms - turn.ticks_ms)
        if changed or not self.exists:
            self._save_header(turn)

    def _compute(self, turn: Turn) -> None:
        partitions = {name: facts.partitions for name, facts in self._facts.items()}
        assign = self._target.begin(self.members, partitions, self.epoch, turn.ticks_ms)
        if assign is None:
            self._move_target(turn)
            return
        turn.command(assign)
        if self.target_epoch == 0:
            # A member must not stay at epoch 0, with which it joins. It has no partitions until the computation ends.
            self._target.apply({}, self.members, self._facts)
            self._move_target(turn)
            self.epoch += 1
            self._target.epoch = self.epoch

    def _assigned(self, event: Assigned, turn: Turn) -> None:
        if not self._target.ends(event, turn.ticks_ms):
            return
        if event.targets is None:
            turn.set_timer(timers.target(), AGAIN_MS)
            return
        self._target.apply(event.targets, self.members, self._facts)
        self._move_target(turn)
        self._aim(turn)

    def _move_target(self, turn: Turn) -> None:
        moved = self.target_epoch != self._target.epoch
        self.target_epoch = self._target.epoch
        for name in {name for shares in self._target.shares.values() for name in shares}:
            self._keep_states(name, self._facts[name], turn)
        if moved:
            self._save_header(turn)

    def _save_header(self, turn: Turn) -> None:
        self.exists = True
        self.header = GroupHeader(
            generation=self.epoch,
            protocol_type=None,
            protocol=None,
            leader=None,
            empty_since_ms=None if self.members else turn.now_ms,
            kind=GroupKind.SHARE,
            epoch=self.epoch,
            target_epoch=self.target_epoch,
        )
        # One header for each turn.
        turn.changes[:] = [change for change in turn.changes if not isinstance(change, SaveHeader)]
        turn.save(SaveHeader(self.header))

    # Topics

    def _note(self, names: Iterable[str], facts: Mapping[str, TopicFacts]) -> bool:
        changed = False
        for name in names:
            known, fact = self._facts.get(name), facts.get(name)
            if known == fact or (fact is None and known is None):
                continue
            changed = True
            if fact is None:
                del self._facts[name]
            else:
                self._facts[name] = fact
        return changed

    def _learn(self, facts: Mapping[str, TopicFacts | None], turn: Turn) -> None:
        read = {name: fact for name, fact in facts.items() if self.reads(name)}
        if self._note(read, {name: fact for name, fact in read.items() if fact is not None}):
            self._aim(turn, changed=True)

    def _forget_unread(self) -> None:
        read = self.subscribed()
        self._facts = {name: facts for name, facts in self._facts.items() if name in read}

    def _keep_states(self, name: str, facts: TopicFacts, turn: Turn) -> None:
        """Add states for all partitions of a topic."""
        known = self.topics.get(name)
        if known is not None and known.topic_id == facts.topic_id:
            if known.partitions >= facts.partitions:
                return
            self.topics[name] = msgspec.structs.replace(known, partitions=facts.partitions)
        else:
            self.topics[name] = StoredShareTopic(
                topic=name, topic_id=facts.topic_id, partitions=facts.partitions, epoch=self._next_state_epoch(turn)
            )
        turn.save(SaveField(self.topics[name]))

    def _next_state_epoch(self, turn: Turn) -> int:
        # State epochs come from the clock, so that a group that is deleted and created again has later ones.
        self._state_epoch = max(self._state_epoch + 1, turn.now_ms)
        return self._state_epoch

    def _drop_topic(self, event: DropTopic, turn: Turn) -> None:
        known = self.topics.get(event.topic)
        if known is not None and event.takes(known.topic_id):
            del self.topics[event.topic]
            turn.save(DropField(known.field))
        facts = self._facts.get(event.topic)
        if facts is not None and event.takes(facts.topic_id):
            del self._facts[event.topic]
            self._aim(turn, changed=True)

    # Offsets

    def _alter(self, request: AlterShareOffsets, turn: Turn) -> None:
        if self.members:
            turn.reply(
                request.token,
                ShareOffsetsResult(error=GroupError.NON_EMPTY_GROUP, message=f"The group {self.name} is not empty."),
            )
            return
        for name in request.partitions:
            self._keep_states(name, request.facts[name], turn)
        epoch = self._next_state_epoch(turn)
        states: list[PartitionState] = []
        for name, offsets in request.partitions.items():
            topic = self.topics[name]
            topic = self.topics[name] = msgspec.structs.replace(
                topic,
                altered={**topic.altered, **dict.fromkeys(offsets, epoch)},
                begins={**topic.begins, **offsets},
            )
            turn.save(SaveField(topic))
            states += _states(topic, offsets)
        if not self.exists:
            self._save_header(turn)
        turn.reply(request.token, ShareOffsetsResult(states=tuple(states)))

    def _delete_offsets(self, request: DeleteShareOffsets, turn: Turn) -> None:
        if not self.exists or self.members:
            error = GroupError.NON_EMPTY_GROUP if self.exists else GroupError.GROUP_ID_NOT_FOUND
            message = f"The group {self.name} is not empty." if self.exists else f"Group {self.name} not found."
            turn.reply(request.token, ShareOffsetsResult(error=error, message=message))
            return
        states: list[PartitionState] = []
        for name in request.topics:
            topic = self.topics.pop(name, None)
            if topic is not None:
                turn.save(DropField(topic.field))
                states += _states(topic, range(topic.partitions))
        turn.reply(request.token, ShareOffsetsResult(states=tuple(states)))

    def _delete(self, request: DeleteGroup, turn: Turn) -> None:
        if not self.exists:
            turn.refuse(request, GroupError.GROUP_ID_NOT_FOUND)
        elif self.members:
            turn.refuse(request, GroupError.NON_EMPTY_GROUP)
        else:
            turn.save(DropGroup())
            self._deadlines.cancel_all()
            self.topics.clear()
            self._target.cancel()
            self.exists = False
            turn.reply(request.token, DeleteGroupResult())

    # What the group shows (`groups.kinds.KindGroup`)

    @property
    def kind(self) -> GroupKind:
        """Kind of its members."""
        return GroupKind.SHARE

    @property
    def is_used(self) -> bool:
        """Whether the group exists: an empty one remains."""
        return self.exists

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def state(self) -> str:
        """State with Kafka's name."""
        state = GroupState.STABLE if self.members else GroupState.EMPTY
        return state.value

    @property
    def member_bytes(self) -> int:
        """Approximate bytes of members."""
        return sum(member.size for member in self.members.values())

    def reads(self, topic: str) -> bool:
        """Return whether a member is subscribed to a topic."""
        return any(topic in topics for topics in {member.topics for member in self.members.values()})

    def subscribed(self) -> Iterable[str]:
        """Return the topics of all members."""
        return frozenset[str]().union(*(member.topics for member in self.members.values()))

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call."""
        moved, self._moved = self._moved, Moved({}, {})
        return moved

    def describe(self) -> GroupDescription:
        """Return the description without members."""
        return described_as_share(self.name, self.epoch, has_members=bool(self.members))

    def check_commit(self, request: Commit | TxnOffsetCommit) -> GroupError | dict[TopicPartition, GroupError]:
        """Reject a commit: a share group has no committed offsets."""
        del request
        return GroupError.GROUP_ID_NOT_FOUND

    def check_fetch(self, member_id: str | None, epoch: int) -> GroupError | None:
        """Allow a fetch, which finds nothing."""
        del member_id, epoch
        return None

    def states(self) -> tuple[PartitionState, ...]:
        """Return the states of all share partitions."""
        return tuple(state for topic in self.topics.values() for state in _states(topic, range(topic.partitions)))

    def assigned_to(self, member: Sharer) -> dict[str, tuple[UUID, tuple[int, ...]]]:
        """Return a member's last assignment: topic -> its ID and partitions."""
        return {
            name: (self.topics[name].topic_id, indexes)
            for name, indexes in member.assigned.items()
            if name in self.topics
        }


def _states(topic: StoredShareTopic, indexes: Iterable[int]) -> list[PartitionState]:
    return [
        PartitionState(topic.topic, topic.topic_id, index, topic.state_epoch(index), topic.begins.get(index))
        for index in indexes
    ]
