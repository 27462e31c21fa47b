"""The consumer group of KIP-848: the server assigns partitions, members follow with their heartbeats.

`groups.group.Group` contains it while the group is of this kind. Modules: `heartbeat` (members' requests), `target`
(assignment), `commit` (checks of commits and fetches of offsets), `membership` (their data).
"""

from collections.abc import Iterable

from headrace.groups import timers
from headrace.groups.configs import Configs, NewerGroupSettings, Rules
from headrace.groups.consumers import classic_members
from headrace.groups.consumers.classic_members import Facts
from headrace.groups.consumers.commit import check_commit, check_fetch
from headrace.groups.consumers.description import ConsumerGroupDescription, describe, state_of
from headrace.groups.consumers.events import (
    Assigned,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerNotice,
    ConsumerRequest,
    Resolve,
    Resolved,
    TopicsChanged,
)
from headrace.groups.consumers.heartbeat import changes_nothing, heartbeat
from headrace.groups.consumers.instances import Instances
from headrace.groups.consumers.member import MemberState
from headrace.groups.consumers.membership import Membership
from headrace.groups.consumers.target import aim, assigned
from headrace.groups.description import GroupDescription, Moved
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, DropTopic, Heartbeat, Join, Leave, Sync, TimerFired, TxnOffsetCommit
from headrace.groups.model import (
    CONSUMER_FIELD,
    GroupHeader,
    GroupKind,
    GroupSettings,
    StoredConsumer,
    StoredGroup,
    TopicPartition,
)
from headrace.groups.timers import TimerKey, TimerKind
from headrace.groups.turn import Turn

GroupEvent = ConsumerRequest | ConsumerNotice | TimerFired | DropTopic


class ConsumerGroup:
    """Members of a consumer group (`groups.kinds.KindGroup`)."""

    kind = GroupKind.CONSUMER

    def __init__(self, name: str, limits: NewerGroupSettings, configs: Configs, epoch: int) -> None:
        """Create a group without members. `epoch`: the generation or the epoch before."""
        # Members join at epoch 1 or later: 0 means that a member has none.
        self._limits = limits
        self._configs = configs
        self._use(Membership(name, epoch + 1, epoch + 1))

    def _use(self, members: Membership) -> None:
        self._group = members
        self.instances = Instances(members, lambda: self._rules)

    @property
    def _rules(self) -> Rules:
        return Rules(self._limits, self._configs.of(self._group.name))

    @classmethod
    def of(cls, members: Membership, limits: NewerGroupSettings, configs: Configs) -> "ConsumerGroup":
        """Return a group with these members."""
        group = cls(members.name, limits, configs, 0)
        group._use(members)
        return group

    @classmethod
    def restore(
        cls, stored: StoredGroup, header: GroupHeader, limits: NewerGroupSettings, configs: Configs, turn: Turn
    ) -> "ConsumerGroup":
        """Return the stored group. Members keep their epochs and partitions, and get full sessions."""
        group = cls(stored.name, limits, configs, 0)
        members = Membership(stored.name, header.epoch, header.target_epoch)
        group._use(members)
        members.restore(header, (each for each in stored.fields if isinstance(each, StoredConsumer)))
        timeout_ms = configs.of(stored.name).consumer_session_timeout_ms
        for member in members.members.values():
            turn.set_timer(timers.session(member.member_id), member.session_timeout_ms or timeout_ms)
            if not member.is_classic:
                member.expect(members.holdings.held(member.member_id), turn.ticks_ms)
            if member.state is MemberState.UNREVOKED:
                turn.set_timer(timers.revocation(member.member_id), member.rebalance_timeout_ms)
        patterns = {each.member_id: each.pattern for each in members.members.values() if each.pattern}
        if patterns:
            turn.command(Resolve(patterns))
        return group

    def take(self, event: GroupEvent, turn: Turn) -> None:
        """Handle one event."""
        match event:
            case ConsumerHeartbeat():
                heartbeat(self._group, self._rules, event, turn)
            case TopicsChanged(facts):
                for name, each in facts.items():
                    if each is None:
                        self._group.holdings.topic(name, None, None)
                    else:
                        self._group.holdings.topic(name, each.topic_id, each.partitions)
                aim(self._group, self._rules, turn)
            case Resolved():
                self._resolve(event, turn)
            case Assigned():
                assigned(self._group, self._rules, event, turn)
            case DropTopic(topic):
                current = self._group.holdings.current(topic)
                if current is not None and event.takes(current.id):
                    self._group.holdings.topic(topic, None, None)
                    aim(self._group, self._rules, turn)
            case TimerFired(key):
                if turn.take_timer(key):
                    self._fired(key.kind, key.member_id, turn)
        self.finish(turn)

    def finish(self, turn: Turn) -> None:
        """Store changes."""
        if self._group.members or self._group.header is not None:
            turn.save(*self._group.take_changes())

    def take_classic(
        self, request: Join | Sync | Heartbeat | Leave, settings: GroupSettings, facts: Facts, turn: Turn
    ) -> None:
        """Handle a request of a classic member."""
        match request:
            case Join():
                classic_members.join(self._group, self._rules, settings, request, facts, turn)
            case Sync():
                classic_members.sync(self._group, request, turn)
            case Heartbeat():
                classic_members.beat(self._group, request, turn)
            case Leave():
                classic_members.leave(self._group, self._rules, request, turn)
        turn.save(*self._group.take_changes())

    def may_go_on_classic(self, request: Heartbeat) -> bool:
        """Return whether a classic member's heartbeat would succeed."""
        return classic_members.heartbeat_error(self._group, request) is None

    @property
    def is_classic(self) -> bool:
        """Whether there are members, and all are classic."""
        return 0 < self._group.classic == len(self._group.members)

    def stored_members(self) -> list[StoredConsumer]:
        """Return all members as stored."""
        return [each.stored(self._group.holdings) for each in self._group.members.values()]

    def dissolve(self, turn: Turn) -> list[str]:
        """Cancel all timers. Return the fields that storage must remove."""
        turn.cancel_timer(timers.target())
        for member_id in self._group.members:
            turn.cancel_timer(timers.session(member_id))
            turn.cancel_timer(timers.revocation(member_id))
        return [f"{CONSUMER_FIELD}{member_id}" for member_id in self._group.members]

    def renew(self, request: ConsumerRequest, turn: Turn) -> bool:
        """Handle a heartbeat that changes nothing, as most do. Return False for another one."""
        result = self.may_go_on(request)
        if result is None:
            return False
        group = self._group
        member = group.members[request.member_id]
        member.connection = max(member.connection, request.connection)
        turn.set_timer(timers.session(member.member_id), self._configs.of(group.name).consumer_session_timeout_ms)
        turn.reply(request.token, result)
        return True

    def _resolve(self, event: Resolved, turn: Turn) -> None:
        group = self._group
        for name, each in event.facts.items():
            group.holdings.topic(name, each.topic_id, each.partitions)
        for member_id, found in event.members.items():
            member = group.members.get(member_id)
            if member is not None and member.pattern == found.pattern:
                member.matched = found.topics
                group.holdings.subscribe(member_id, member.subscription)
                group.resize(member)
        aim(group, self._rules, turn)

    def _fired(self, kind: TimerKind, member_id: str, turn: Turn) -> None:
        if kind is not TimerKind.TARGET:
            self._group.remove(self._group.members[member_id], turn)
        aim(self._group, self._rules, turn)

    def may_go_on(self, request: ConsumerRequest) -> ConsumerHeartbeatResult | None:
        """Return the result of a heartbeat that changes nothing. None: it may."""
        if not changes_nothing(self._group, request):
            return None
        return ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)

    def check_commit(self, request: Commit | TxnOffsetCommit) -> GroupError | dict[TopicPartition, GroupError]:
        """Return why a commit is rejected: all of it, or which partitions of it."""
        return check_commit(self._group, request)

    def check_fetch(self, member_id: str | None, epoch: int) -> GroupError | None:
        """Return why a fetch of committed offsets is rejected."""
        return check_fetch(self._group, member_id, epoch)

    def reads(self, topic: str) -> bool:
        """Return whether a member is subscribed to a topic."""
        return self._group.holdings.is_subscribed(topic)

    def subscribed(self) -> Iterable[str]:
        """Return the topics of all members, each once or more."""
        return {name for topics in set(self._group.holdings.members.values()) for name in topics}

    @property
    def is_stored(self) -> bool:
        """Whether the group is stored."""
        return self._group.header is not None

    @property
    def header(self) -> GroupHeader | None:
        """The header as it is or will be stored."""
        return self._group.header

    @property
    def is_used(self) -> bool:
        """Whether the group has members."""
        return bool(self._group.members)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._group)

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return self._group.holdings.epoch

    @property
    def member_bytes(self) -> int:
        """Approximate bytes of members."""
        return self._group.bytes

    def take_moved(self) -> Moved:
        """Return members that joined or left since the last call."""
        return self._group.take_moved()

    @property
    def state(self) -> str:
        """State with Kafka's name."""
        return state_of(self._group, self.instances).value

    def describe(self) -> GroupDescription:
        """Return the description as for a classic group."""
        return self.describe_members().as_classic()

    def describe_members(self) -> ConsumerGroupDescription:
        """Return the description."""
        return describe(self._group, self._rules, self.instances)

    def owner(self, topic: str, partition: int) -> tuple[str, TimerKey] | None:
        """Return the client ID and member ID of a partition's owner, and its session's timer. None: no consumer."""
        found = self._group.holdings.granted(topic, partition)
        if found is None or not isinstance(found[0], str):
            return None
        member = self._group.members[found[0]]
        return f"{member.client_id}/{member.member_id}", timers.session(member.member_id)

    def taken(self, topic: str) -> list[int]:
        """Return the partitions of a topic that consumers own."""
        owners = self._group.holdings.owners().get(topic, {})
        return [index for index, owner in owners.items() if isinstance(owner, str)]
