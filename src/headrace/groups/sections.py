"""Sections of a group and their instances, next to members of Kafka's protocols (decision 0150).

While the group has consumers, the consumer group assigns the partitions of all sections. Otherwise each section assigns
its own.
"""

from msgspec import structs

from headrace.groups import conversion
from headrace.groups.classic.group import ClassicGroup
from headrace.groups.classic.states import GroupState
from headrace.groups.configs import Configs
from headrace.groups.consumers.classic_members import Facts
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.errors import GroupError, InstanceError, InstanceProblem
from headrace.groups.events import DropTopic
from headrace.groups.instances.events import (
    Beat,
    CommitCursor,
    CreateCursor,
    Delivered,
    Get,
    InstanceRefused,
    InstanceRequest,
    InstanceResult,
    Taken,
    Update,
)
from headrace.groups.instances.group import BalancedGroup
from headrace.groups.instances.model import Reservation
from headrace.groups.instances.requests import unreserved
from headrace.groups.kinds import OtherMembers
from headrace.groups.model import DropBalanced, GroupSettings
from headrace.groups.offsets import CommittedOffsets
from headrace.groups.timers import TimerKey, TimerKind
from headrace.groups.turn import Turn
from headrace.machines.deadlines import Deadlines
from headrace.machines.effects import Now


class Sections:
    """Handles requests of instances in a group."""

    def __init__(
        self,
        classic: ClassicGroup,
        others: OtherMembers,
        positions: CommittedOffsets,
        deadlines: Deadlines[TimerKey],
        settings: GroupSettings,
        configs: Configs,
        facts: Facts,
    ) -> None:
        """`others` has the sections. `facts` looks up topics."""
        self._name = classic.name
        self._classic = classic
        self._others = others
        self._positions = positions
        self._deadlines = deadlines
        self._settings = settings
        self._configs = configs
        self._facts = facts

    @property
    def consumers(self) -> ConsumerGroup | None:
        """The part with consumers, if the group is a consumer group."""
        return self._others.part

    def share(self) -> None:
        """Let the consumer group assign the partitions of all sections."""
        if self.consumers is not None:
            self.consumers.instances.attach(self._facts)

    def follow_holdings(self, turn: Turn) -> None:
        """Grant free partitions to instances. Detach the sections if there are no consumers."""
        part = self.consumers
        if part is not None:
            if part.is_used:
                part.instances.align(turn)
            else:
                part.instances.detach(turn)
            part.finish(turn)

    def delivered(self, event: Delivered, turn: Turn) -> None:
        """Handle the result of a get."""
        taken = event.topic in self._others and self._others[event.topic].delivered(event, turn)
        if event.token is not None:
            turn.reply(event.token, Taken() if taken else _forgotten(self._name))

    def answer(self, request: InstanceRequest, turn: Turn) -> InstanceResult:
        """Handle a request of an instance."""
        try:
            return self._section(request, turn).answer(request, turn)
        except InstanceError as error:
            return InstanceRefused(error.kind, error.message, error.partition)

    def _section(self, request: InstanceRequest, turn: Turn) -> BalancedGroup:
        if self._classic.state is GroupState.DEAD:
            # The client retries and finds or creates a live group.
            raise self._unknown(request)
        section = self._others.get(request.topic.name)
        if self._classic.state is not GroupState.EMPTY:
            self._join_classic(section, request, turn)
        if section is None and isinstance(request, CreateCursor) and request.starts is not None:
            consumers, topic = self.consumers, request.topic
            # Members may have read records after the offset at which they begin without a committed offset.
            members = range(topic.partitions) if self._classic.state is not GroupState.EMPTY else ()
            taken = members if consumers is None else consumers.taken(topic.name)
            section = BalancedGroup.create(
                self._name,
                request.topic,
                request.starts,
                request.leader_epochs,
                self._positions,
                self._settings,
                turn,
                taken,
            )
            self._others[request.topic.name] = section
            if self.consumers is not None and self.consumers.is_used:
                self.share()
            self._classic.watch_offsets(turn)
        if section is None:
            raise self._unknown(request)
        return section

    def _join_classic(self, section: BalancedGroup | None, request: InstanceRequest, turn: Turn) -> None:
        """Let an instance into a group with classic members, which becomes a consumer group. Raises InstanceError."""
        may = conversion.may_upgrade(self._settings.newer)
        if section is not None and isinstance(request, CommitCursor | Get) and request.cursor.offsets:
            commits = isinstance(request, CommitCursor) or (may and request.cursor.commit_on_get)
            if commits:
                # Kafka consumers have taken the instance's partitions.
                raise unreserved(request.cursor.offsets[0][0])
        if section is not None and isinstance(request, Get | Beat):
            section.check(request.cursor)
            found = conversion.upgrade(self._classic, self._settings.newer, self._configs, self._facts, turn)
            if isinstance(found, ConsumerGroup):
                self._others.part = found
                self.share()
                return
            if found is GroupError.COORDINATOR_NOT_AVAILABLE:
                message = f"Kafka consumers in group {self._name!r} are rebalancing: try again"
                raise InstanceError(InstanceProblem.UNAVAILABLE, message)
        creates = section is None and isinstance(request, CreateCursor)
        if creates and conversion.may_share(self._classic, self._settings.newer):
            # The group remains classic until the instance uses its cursor.
            return
        # A commit without offsets adds no member.
        if section is None or isinstance(request, Get | Beat | Update):
            raise InstanceError(InstanceProblem.GROUP_IN_USE, f"group {self._name!r} has Kafka consumers")

    def _unknown(self, request: InstanceRequest) -> InstanceError:
        return InstanceError(InstanceProblem.UNKNOWN_GROUP, f"no group {self._name!r} on {request.topic.name!r}")

    def fired(self, key: TimerKey, turn: Turn) -> None:
        """Handle a timer of a section."""
        section = self._others[key.section]
        if key.kind is TimerKind.INSTANCE:
            section.timer_fired(key.member_id, turn)
            return
        read = self._others.part is not None and self._others.part.reads(key.section)
        in_use = read or self._classic.uses(key.section) or self._has_pending(key.section)
        if section.look_again(turn, turn.now_ms if in_use else self._last_commit_ms(key.section)):
            self.drop(key.section, turn)
            turn.save(*self._positions.drop_topic(DropTopic(key.section)))
            self._classic.watch_offsets(turn)
            self._classic.end_if_nothing(turn)

    def _last_commit_ms(self, topic: str) -> int:
        commits = (each.committed_ms for partition, each in self._positions.all().items() if partition.topic == topic)
        return max(commits, default=0)

    def _has_pending(self, topic: str) -> bool:
        return any(partition.topic == topic for partition in self._positions.pending.partitions())

    def drop(self, topic: str, turn: Turn) -> bool:
        """Remove a section. Return False if there is none."""
        section = self._others.pop(topic, None)
        if section is None:
            return False
        section.cancel_timers(turn)
        if self.consumers is not None:
            self.consumers.instances.forget(topic)
        turn.save(DropBalanced(topic))
        return True

    def reservations(self, topic: str, now: Now) -> list[Reservation] | None:
        """Return a section's partitions, if it exists."""
        section = self._others.get(topic)
        if section is None:
            return None
        found = section.reservations(now)
        return found if self.consumers is None else [self._reserved(topic, each, now) for each in found]

    def _reserved(self, topic: str, found: Reservation, now: Now) -> Reservation:
        """Add a consumer that owns the partition."""
        owner = None if self.consumers is None else self.consumers.owner(topic, found.partition)
        if owner is None:
            return found
        ends = self._deadlines.get(owner[1])
        until_ms = None if ends is None else now.wall_ms + ends - now.ticks_ms
        return structs.replace(found, instance=owner[0], reserved_until_ms=until_ms, is_consumer=True)


def _forgotten(name: str) -> InstanceRefused:
    """A get's plan was discarded with unstored state."""
    return InstanceRefused(InstanceProblem.UNAVAILABLE, f"group {name!r} was deleted and created again: try again")
