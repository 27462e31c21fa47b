"""A consumer group on a manual clock, and its members' heartbeats.

After every event, a group restored from storage must equal the one in memory.
"""

from collections.abc import Mapping
from uuid import UUID

from headrace.groups.configs import Configs, GroupConfig, NewerGroupSettings
from headrace.groups.consumers.description import ConsumerGroupDescription
from headrace.groups.consumers.events import (
    Assign,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Resolve,
    Resolved,
    ResolvedPattern,
    TopicsChanged,
)
from headrace.groups.consumers.group import ConsumerGroup
from headrace.groups.errors import GroupError
from headrace.groups.group import Group
from headrace.groups.model import GroupSettings, TopicFacts
from tests.harness.groups import GroupContext, Ticket

FLIGHTS, TRAINS = UUID(int=1), UUID(int=2)
FACTS = {"flights": TopicFacts(FLIGHTS, 4), "trains": TopicFacts(TRAINS, 2)}
SAME = (-1,)
"""Stands for `owned` as the member was assigned it last."""


class ConsumerContext(GroupContext):
    """One consumer group, whose topics are `flights` with four partitions and `trains` with two."""

    def __init__(
        self, limits: NewerGroupSettings | None = None, config: GroupConfig | None = None, retention_ms: int = 3_600_000
    ) -> None:
        settings = GroupSettings(newer=limits or NewerGroupSettings(), offsets_retention_ms=retention_ms)
        super().__init__(settings, configs=Configs(config))
        self.facts: dict[str, TopicFacts] = dict(FACTS)
        self.epochs: dict[str, int] = {}
        """Member ID -> epoch of its last response."""
        self.assigned: dict[str, dict[UUID, tuple[int, ...]]] = {}
        """Member ID -> its last assignment."""

    def look_up(self, topic: str) -> TopicFacts | None:
        """See `GroupContext`."""
        return self.facts.get(topic)

    # verbs

    def beat(
        self,
        member_id: str,
        *,
        epoch: int | None = None,
        owned: Mapping[UUID, tuple[int, ...]] | tuple[int, ...] | None = None,
        topics: tuple[str, ...] | None = None,
        pattern: str | None = None,
        timeout_ms: int = -1,
        instance: str | None = None,
        assignor: str | None = None,
        connection: int = 0,
        rack: str | None = None,
    ) -> ConsumerHeartbeatResult:
        """Send a heartbeat with the last epoch, if none is named. `owned`: partitions of flights, or by topic ID."""
        if owned is SAME:
            owned = self.assigned[member_id]
        if isinstance(owned, tuple):
            owned = {FLIGHTS: owned} if owned else {}
        ticket: Ticket[ConsumerHeartbeatResult] = self._ticket()
        request = ConsumerHeartbeat(
            token=ticket,
            member_id=member_id,
            member_epoch=self.epochs[member_id] if epoch is None else epoch,
            instance_id=instance,
            rack_id=rack,
            rebalance_timeout_ms=timeout_ms,
            topics=topics,
            pattern=pattern,
            server_assignor=assignor,
            owned=None if owned is None else tuple(owned.items()),
            client_id="client",
            client_host="/127.0.0.1",
            connection=connection,
            facts={name: self.facts[name] for name in topics or () if name in self.facts},
        )
        result = self._request(ticket, request).result
        if result.error is None:
            self.epochs[member_id] = result.member_epoch
            if result.assignment is not None:
                self.assigned[member_id] = dict(result.assignment)
        return result

    def enter(
        self,
        member_id: str,
        *,
        topics: tuple[str, ...] | None = ("flights",),
        timeout_ms: int = 5_000,
        pattern: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        connection: int = 0,
    ) -> ConsumerHeartbeatResult:
        """Send a first heartbeat."""
        return self.beat(
            member_id,
            epoch=0,
            owned=(),
            topics=topics,
            pattern=pattern,
            timeout_ms=timeout_ms,
            instance=instance,
            assignor=assignor,
            connection=connection,
        )

    def settle(self, *members: str) -> None:
        """Let members send heartbeats, and give up what they must, until none of them waits."""
        for _ in range(20):
            waiting = [self.beat(member, owned=SAME).waits for member in members]
            if not any(waiting):
                return
        raise AssertionError("the group does not settle")

    def change_topics(self, **facts: TopicFacts | None) -> None:
        """Create, extend, recreate or delete topics."""
        for name, each in facts.items():
            if each is None:
                self.facts.pop(name, None)
            else:
                self.facts[name] = each
        self.send(TopicsChanged(facts))

    def resolve(self, pattern: str, topics: set[str], *members: str) -> None:
        """Notify the group of a pattern's topics."""
        found = ResolvedPattern(pattern, frozenset(topics))
        self.send(Resolved(dict.fromkeys(members, found), {name: self.facts[name] for name in topics}))

    # what happened

    @property
    def part(self) -> ConsumerGroup:
        """The group's part of this kind."""
        assert isinstance(self.whole.part, ConsumerGroup)
        return self.whole.part

    @property
    def described(self) -> ConsumerGroupDescription:
        """The group's description."""
        return self.part.describe_members()

    def has(self, member_id: str, topic_id: UUID = FLIGHTS) -> list[int]:
        """Partitions of flights in a member's last assignment."""
        return list(self.assigned[member_id].get(topic_id, ()))

    @property
    def resolves(self) -> dict[str, str]:
        """Patterns that the last event asked to resolve, by member ID."""
        return {
            name: each
            for effect in self.effects
            if isinstance(effect, Resolve)
            for name, each in effect.patterns.items()
        }

    @property
    def assigns(self) -> list[Assign]:
        """Targets that the last event asked to compute."""
        return [effect for effect in self.effects if isinstance(effect, Assign)]

    def refused(self, result: ConsumerHeartbeatResult) -> GroupError | None:
        """The error of a heartbeat that changed nothing in storage."""
        assert not self.persisted
        return result.error

    def _check(self) -> None:
        assert self.timers == self.whole.deadlines, "the group does not know its timers"
        self.tickets = [ticket for ticket in self.tickets if ticket.held]
        assert set(self.whole.held_tokens()) == set(self.tickets), "a request was dropped"
        again, _ = Group.restore(self.stored, self.settings, self.now, self.configs)
        if isinstance(self.whole.part, ConsumerGroup) and self.whole.part.header is not None:
            assert isinstance(again.part, ConsumerGroup)
            found, stored = self.described, again.part.describe_members()
            members = sorted(found.members, key=lambda each: each.member_id)
            assert list(stored.members) == members
            assert (stored.state, stored.epoch, stored.target_epoch) == (found.state, found.epoch, found.target_epoch)
