"""A consumer group of all APIs, with one name and one set of committed offsets.

The classic part is Kafka's group. Each balanced section assigns one topic to OCI instances. A group of a newer kind has
a part for its members (`groups.kinds`), which share partitions with instances (decision 0150). All share committed
offsets.
"""

from collections.abc import Hashable, Mapping, Sequence

from headrace.groups import conversion
from headrace.groups.classic.group import ClassicGroup
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import Configs, MigrationPolicy
from headrace.groups.consumers import heartbeat
from headrace.groups.consumers.classic_members import Facts, no_facts
from headrace.groups.consumers.events import Assigned, ConsumerHeartbeat, ConsumerRequest, Resolved, TopicsChanged
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.description import GroupDescription, Moved, described_as_balanced
from headrace.groups.effects import Effect, HeartbeatResult, Result
from headrace.groups.errors import GroupError
from headrace.groups.events import (
    ClassicEvent,
    Commit,
    DeleteGroup,
    DropTopic,
    Event,
    Heartbeat,
    Join,
    Leave,
    Request,
    Sync,
    TimerFired,
    TransactionLost,
    TxnOffsetCommit,
    UnsharedEvent,
)
from headrace.groups.instances.events import (
    Beat,
    CommitCursor,
    CreateCursor,
    Delivered,
    Get,
    Update,
)
from headrace.groups.instances.group import BalancedGroup
from headrace.groups.instances.model import Reservation
from headrace.groups.kinds import TIMERS, KindEvent, KindGroup, OtherMembers
from headrace.groups.model import (
    JOIN_EPOCH,
    DropField,
    DropOffsets,
    GroupChange,
    GroupKind,
    GroupSettings,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveOffsets,
    StoredGroup,
    TopicPartition,
)
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.pending_offsets import Guard
from headrace.groups.sections import Sections
from headrace.groups.sharing import exclusion
from headrace.groups.sharing.events import AlterShareOffsets, DeleteShareOffsets, ShareHeartbeat
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.timers import TimerKey
from headrace.groups.turn import GROUP_BYTES, UNBOUNDED, Room, Turn
from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Now


class Group:
    """One group, as a pure state machine: `handle` returns effects in the required order."""

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        positions: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        pending: Mapping[PendingKey, PendingOffset] | None = None,
        configs: Configs | None = None,
        facts: Facts = no_facts,
    ) -> None:
        """`facts` looks up topics, of which classic members know only names."""
        self.name = name
        self._facts = facts
        self._settings = settings
        self._configs = Configs() if configs is None else configs
        self._positions = CommittedOffsets(positions or {}, pending or {})
        self._deadlines: Deadlines[TimerKey] = Deadlines()
        self.balanced = OtherMembers()
        self.classic = ClassicGroup(name, settings, self._positions, self._deadlines, self.balanced)
        self._sections = Sections(
            self.classic, self.balanced, self._positions, self._deadlines, settings, self._configs, facts
        )
        self.sharing = ShareGroup(name, settings, self._configs, self._deadlines)
        self._leftover: tuple[str, ...] = ()
        """Stored members of newer kinds in a group that an older server made classic."""

    @property
    def part(self) -> KindGroup | None:
        """The part with members of a newer kind. None: the group is classic."""
        return self.sharing if self.sharing.exists else self.balanced.part

    @property
    def kind(self) -> GroupKind:
        """Kind of the group."""
        return GroupKind.CLASSIC if self.part is None else self.part.kind

    @classmethod
    def restore(
        cls,
        stored: StoredGroup,
        settings: GroupSettings,
        now: Now,
        configs: Configs | None = None,
        facts: Facts = no_facts,
    ) -> "tuple[Group, list[Effect]]":
        """Return the stored group and effects that set its timers."""
        group = cls(stored.name, settings, stored.positions, stored.pending, configs, facts)
        turn = Turn(now, group._deadlines)
        if stored.header is not None and stored.header.kind is GroupKind.SHARE:
            group.sharing.restore(stored, turn)
            return group, turn.effects()
        if stored.header is not None and stored.header.kind is GroupKind.CONSUMER:
            group.balanced.part = ConsumerGroup.restore(stored, stored.header, settings.newer, group._configs, turn)
        part = group.balanced.part
        shared = part is not None and part.is_used
        for section in stored.balanced:
            group.balanced[section.topic] = BalancedGroup.restore(
                stored.name, section, group._positions, settings, turn, shared=shared
            )
        if shared:
            group._sections.share()
        if group.part is None:
            group._leftover = tuple(value.field for value in stored.fields)
        group.classic.take_up(stored, turn)
        return group, turn.effects()

    def handle(self, event: Event, now: Now, arrived_ms: int | None = None, room: Room = UNBOUNDED) -> list[Effect]:
        """Handle one event and return ordered effects.

        `arrived_ms` is its arrival (ticks) if it waited, so that slow storage does not expire an instance. `room` is
        the server's free memory.
        """
        turn = Turn(now, self._deadlines, room)
        if isinstance(event, ConsumerHeartbeat) and self._renews(event, turn):
            return turn.effects()
        if self.sharing.exists or isinstance(event, ShareHeartbeat | AlterShareOffsets | DeleteShareOffsets):
            self._share(event, turn)
        else:
            self._handle(event, now.ticks_ms if arrived_ms is None else arrived_ms, turn)
        return turn.effects()

    def _renews(self, request: ConsumerHeartbeat, turn: Turn) -> bool:
        """Handle a heartbeat that changes nothing. Most heartbeats are such ones, and must cost little."""
        part = self.balanced.part
        return part is not None and not self.balanced and part.renew(request, turn)

    def _share(self, event: Event, turn: Turn) -> None:
        match event:
            case ShareHeartbeat() | AlterShareOffsets() | DeleteShareOffsets():
                if self.sharing.exists or not (self.classic.exists or self.part is not None):
                    self.sharing.take(event, turn)
                elif self.classic.state is GroupState.DEAD:
                    # The client retries, and finds or creates a live group.
                    turn.refuse(event, GroupError.COORDINATOR_NOT_AVAILABLE)
                else:
                    turn.refuse(event, GroupError.GROUP_ID_NOT_FOUND, f"Group {self.name} is not a share group.")
            case DeleteGroup() | TimerFired() | TopicsChanged() | Assigned() | DropTopic():
                self.sharing.take(event, turn)
            case Resolved() | TransactionLost():
                pass  # A share group has neither patterns nor committed offsets.
            case _:
                if event.token is not None:
                    turn.reply(event.token, exclusion.answer(self.name, event))

    def _handle(self, event: UnsharedEvent, arrived_ms: int, turn: Turn) -> None:
        for section in self.balanced.values():
            section.dismiss_silent(arrived_ms, turn)
        match event:
            case CreateCursor() | Get() | CommitCursor() | Beat() | Update():
                turn.reply(event.token, self._sections.answer(event, turn))
            case Delivered():
                self._sections.delivered(event, turn)
            case TimerFired(key) if key.section:
                if turn.take_timer(key):
                    self._sections.fired(key, turn)
            case DropTopic():
                self._drop_topic(event, turn)
            case ConsumerHeartbeat():
                self._member_request(event, turn)
            case TopicsChanged() | Resolved() | Assigned():
                self._tell_part(event, turn)
            case TimerFired(key) if self.part is not None and key.kind in TIMERS:
                self._tell_part(event, turn)
            case _:
                self._classic(event, turn)
        self._downgrade(turn)
        self._sections.follow_holdings(turn)
        for section in self.balanced.values():
            section.finish(turn)
        if self.part is not None and self.part.header is not None:
            turn.changes[:0] = [DropField(field) for field in self._leftover]
            self._leftover = ()
            self.classic.follow(self.part.header, used=self.part.is_used, turn=turn)

    def _drop_topic(self, drop: DropTopic, turn: Turn) -> None:
        section = self.balanced.get(drop.topic)
        dropped = section is not None and drop.takes(section.topic_id) and self._sections.drop(drop.topic, turn)
        self._tell_part(drop, turn)
        self._classic(drop, turn)
        if dropped:
            self.classic.end_if_nothing(turn)

    def _tell_part(self, event: KindEvent, turn: Turn) -> None:
        if self.part is not None:
            self.part.take(event, turn)

    def _member_request(self, request: ConsumerRequest, turn: Turn) -> None:
        """Handle a consumer's request. The first one makes an unused group a consumer group."""
        if self.classic.state is GroupState.DEAD:
            # The client retries, and finds or creates a live group.
            turn.refuse(request, GroupError.COORDINATOR_NOT_AVAILABLE)
            return
        wrong = heartbeat.fault(request, self._settings.newer)
        if wrong is not None:
            turn.refuse(request, *wrong)
            return
        before = self.balanced.part
        part = before or self._begun(request, turn)
        if isinstance(part, GroupError):
            turn.refuse(request, part, f"Group {self.name} not found." if part is GroupError.GROUP_ID_NOT_FOUND else "")
            return
        self.balanced.part = part
        if request.member_epoch == JOIN_EPOCH:
            self._sections.share()
        part.take(request, turn)
        if part.header is None:
            # Its first request was rejected.
            self._sections.follow_holdings(turn)
            self.balanced.part = before

    def _begun(self, request: ConsumerRequest, turn: Turn) -> ConsumerGroup | GroupError:
        """Return the part for a first consumer, or why there is none."""
        if request.member_epoch != JOIN_EPOCH:
            return GroupError.GROUP_ID_NOT_FOUND
        if self.classic.state is not GroupState.EMPTY:
            if not heartbeat.has_room(request, turn):
                # A conversion for a refused member would let the others rebalance.
                return GroupError.GROUP_MAX_SIZE_REACHED
            return conversion.upgrade(self.classic, self._settings.newer, self._configs, self._facts, turn)
        return ConsumerGroup(self.name, self._settings.newer, self._configs, self.classic.generation)

    def _classic(self, event: ClassicEvent, turn: Turn) -> None:
        before = len(turn.changes)
        self._take_classic(event, turn)
        if self.classic.state is GroupState.DEAD:
            self.balanced.clear()
            self.balanced.part = None
            return
        if self.balanced:
            self._follow_offsets(turn.changes[before:])

    def _take_classic(self, event: ClassicEvent, turn: Turn) -> None:
        match event:
            case Join() | Sync() | Heartbeat() | Leave() if self._bridges():
                self._bridge(event, turn)
            case Join() if self.part is not None and not self._becomes_classic(self.part):
                turn.refuse(event, GroupError.INCONSISTENT_GROUP_PROTOCOL)
            case Commit() | TxnOffsetCommit() if self.part is not None and self.part.size:
                self.classic.commit(event, self.part.check_commit(event), turn)
            case _:
                self.classic.take(event, turn)

    def _follow_offsets(self, changes: Sequence[GroupChange]) -> None:
        for change in changes:
            match change:
                case SaveOffsets(positions):
                    for partition in positions:
                        if partition.topic in self.balanced:
                            self.balanced[partition.topic].follow(partition.partition)
                case DropOffsets(partitions):
                    for partition in partitions:
                        if partition.topic in self.balanced:
                            self.balanced[partition.topic].offset_removed(partition.partition)

    def _bridges(self) -> bool:
        """Return whether classic members may be in the consumer group."""
        part, policy = self._sections.consumers, self._settings.newer.consumer_migration_policy
        used = part is not None and (part.is_used or self.balanced.has_instances)
        return used and policy is not MigrationPolicy.DISABLED

    def _bridge(self, request: Join | Sync | Heartbeat | Leave, turn: Turn) -> None:
        assert self._sections.consumers is not None, "checked"
        if isinstance(request, Join):
            self._sections.share()
        self._sections.consumers.take_classic(request, self._settings, self._facts, turn)

    def _downgrade(self, turn: Turn) -> None:
        """Make a consumer group without consumers a classic one, if it may."""
        part = self._sections.consumers
        mixed = part is None or self.balanced.has_instances or not part.is_classic
        if part is not None and not mixed and conversion.may_downgrade(self._settings.newer):
            part.instances.detach(turn)
            conversion.downgrade(part, self.classic, turn)
            self.balanced.part = None

    def _may_go_on(self, request: Heartbeat) -> bool:
        """Return whether a classic member's heartbeat would succeed."""
        if isinstance(self.part, ConsumerGroup):
            return self.part.may_go_on_classic(request)
        return self.classic.may_go_on(request)

    def _becomes_classic(self, part: KindGroup) -> bool:
        """Make an unused group of a newer kind a classic one. Return False if it is used."""
        if part.is_used or self.balanced.has_instances:
            return False
        self.balanced.part = None
        return True

    def describe(self) -> GroupDescription:
        """Return the description by instances if any, else by classic members."""
        if self.part is not None:
            return self.part.describe()
        if self.balanced.any_read:
            generation = sum(section.generation for section in self.balanced.values())
            shares = {topic: section.shares() for topic, section in sorted(self.balanced.items())}
            return described_as_balanced(self.name, generation, shares)
        return self.classic.describe()

    @property
    def state(self) -> GroupState:
        """State as described. See `state_name` for those of newer kinds."""
        if self.part is not None:
            return self.part.describe().state
        return GroupState.STABLE if self.balanced.any_read else self.classic.state

    @property
    def state_name(self) -> str:
        """State with Kafka's name, as ListGroups shows it."""
        if self.part is not None:
            return self.part.state
        return self.state.value

    @property
    def size(self) -> int:
        """Number of members and instances."""
        members = self.classic.size if self.part is None else self.part.size
        return members + sum(section.size for section in self.balanced.values())

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call, without instances."""
        classic = self.classic.take_moved()
        if self.part is None:
            return classic
        newer = self.part.take_moved()
        return Moved(classic.came | newer.came, classic.went | newer.went)

    def reservations(self, topic: str, now: Now) -> list[Reservation] | None:
        """Return a section's partitions, if it exists."""
        return self._sections.reservations(topic, now)

    def instances(self) -> dict[str, str]:
        """Return instance names by topic and instance."""
        return {f"{topic}/{name}": name for topic, section in self.balanced.items() for name in section.names}

    @property
    def generations(self) -> int:
        """Number of generations, classic and balanced."""
        generation = self.classic.generation if self.part is None else self.part.epoch
        return generation + sum(section.generation for section in self.balanced.values())

    @property
    def member_bytes(self) -> int:
        """Approximate bytes of members and pending ids, without instances."""
        size = self.classic.member_bytes + (0 if self.part is None else self.part.member_bytes)
        return size and size + GROUP_BYTES

    @property
    def offset_bytes(self) -> int:
        """Approximate bytes of committed and pending offsets."""
        size = self._positions.size
        return size and size + GROUP_BYTES

    def at_once(self, request: Request) -> Result | None:
        """Return the result of a heartbeat that changes nothing. None: another request."""
        if isinstance(request, Heartbeat):
            return HeartbeatResult() if self._may_go_on(request) else None
        if isinstance(request, ShareHeartbeat):
            return self.sharing.going_on(request) if self.sharing.may_go_on(request) else None
        if isinstance(request, ConsumerHeartbeat) and isinstance(self.part, ConsumerGroup):
            return self.part.may_go_on(request)
        return None

    @property
    def deadlines(self) -> Mapping[TimerKey, int]:
        """Timers and their deadlines (ticks)."""
        return self._deadlines

    def held_tokens(self) -> tuple[Hashable, ...]:
        """Return tokens of waiting requests."""
        return self.classic.held_tokens()

    def guard(self, producer_id: int) -> Guard:
        """Return a producer's guard, before the verification of its transaction."""
        return self._positions.pending.guard(producer_id)

    @property
    def guarded(self) -> bool:
        """Whether a request holds a guard."""
        return self._positions.pending.guarded

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return a partition's committed offset, if any."""
        return self._positions.get(partition)
