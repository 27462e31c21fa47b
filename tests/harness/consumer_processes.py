"""Members of a consumer group as their clients run them (KIP-848), and the server that they talk to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import msgspec

from headrace.groups.consumers.events import (
    STATIC_LEAVE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Resolve,
    Resolved,
    ResolvedPattern,
    TopicsChanged,
)
from headrace.groups.effects import CommitResult, Effect
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, Event
from headrace.groups.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Assignment,
    GroupSettings,
    OffsetAndMetadata,
    StoredConsumer,
    TopicFacts,
    TopicPartition,
)
from tests.harness.crashing import CrashingContext
from tests.harness.groups import Ticket

Part = tuple[UUID, int]
WAITING_MS = 100
INTERVAL_MS = 1_000
"""Between heartbeats. The server's is shorter for small groups."""


def parts_of(assignment: Assignment) -> set[Part]:
    """Return the partitions of an assignment."""
    found = [(topic_id, partition) for topic_id, partitions in assignment for partition in partitions]
    assert len(found) == len(set(found)), f"a partition is in it twice: {assignment}"
    return set(found)


def assignment_of(parts: Iterable[Part]) -> Assignment:
    """Return partitions as an assignment."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(parts):
        topics.setdefault(topic_id, []).append(partition)
    return tuple((topic_id, tuple(partitions)) for topic_id, partitions in topics.items())


class ConsumerContext(CrashingContext):
    """A group with consumers, and the broker's view of topics."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        super().__init__(settings)
        self.topics: dict[str, TopicFacts] = {}
        self.patterns: dict[str, str] = {}
        """Patterns to resolve, by member."""
        self.on_restart: Callable[[], None] = lambda: None
        self.on_event: Callable[[], None] = lambda: None

    def beat(self, member_id: str = "m", epoch: int = JOIN_EPOCH, **fields: Any) -> Ticket[ConsumerHeartbeatResult]:
        """Send a ConsumerGroupHeartbeat. At epoch 0, it has a timeout and an empty `owned` unless `fields` differ."""
        if epoch == JOIN_EPOCH:
            fields = {"rebalance_timeout_ms": 60_000, "owned": (), **fields}
        ticket: Ticket[ConsumerHeartbeatResult] = self._ticket()
        facts = {name: self.topics[name] for name in fields.get("topics") or () if name in self.topics}
        request = ConsumerHeartbeat(token=ticket, member_id=member_id, member_epoch=epoch, facts=facts, **fields)
        return self._request(ticket, request)

    def request(self, request: Any) -> Ticket[Any]:
        """Send a request of a client."""
        ticket = self._ticket()
        return self._request(ticket, msgspec.structs.replace(request, token=ticket))

    def look_up(self, topic: str) -> TopicFacts | None:
        """See `GroupContext`."""
        return self.topics.get(topic)

    def change_topic(self, name: str, topic_id: UUID | None, partitions: int = 0) -> None:
        """Create, grow, recreate or delete a topic. The group receives it with `announce`."""
        self.topics.pop(name, None)
        if topic_id is not None:
            self.topics[name] = TopicFacts(topic_id, partitions)

    def announce(self, *names: str) -> None:
        """Notify the group of the present state of topics."""
        self.send(TopicsChanged({name: self.topics.get(name) for name in names}))

    def resolve(self) -> None:
        """Find the topics of all patterns. A pattern is the first letters of a name here."""
        if self.patterns:
            found = {
                member_id: ResolvedPattern(pattern, frozenset(name for name in self.topics if name.startswith(pattern)))
                for member_id, pattern in self.patterns.items()
            }
            facts = {name: self.topics[name] for each in found.values() for name in each.topics}
            self.send(Resolved(found, facts))

    def restart(self) -> None:
        """The next server has patterns to resolve again, and learns of topics later."""
        self.patterns = {}
        super().restart()
        self.on_restart()

    def send(self, event: Event) -> None:
        """See `GroupContext`. The removal of a member is seen by `on_event` before its state is forgotten."""
        super().send(event)
        self.on_event()

    def carry_out(self, effects: list[Effect]) -> None:
        """Remember the patterns that the group wants to have resolved."""
        super().carry_out([effect for effect in effects if not isinstance(effect, Resolve)])
        self.effects = effects
        for effect in effects:
            if isinstance(effect, Resolve):
                self.patterns.update(effect.patterns)
                self.patterns = {member_id: pattern for member_id, pattern in self.patterns.items() if pattern}

    @property
    def member_ids(self) -> set[str]:
        """Ids of the stored members."""
        return {member.member_id for member in self.stored.fields if isinstance(member, StoredConsumer)}

    def _check(self) -> None:
        assert self.timers == self.whole.deadlines, "the group does not know its timers"
        self.tickets = [ticket for ticket in self.tickets if ticket.held]
        assert set(self.whole.held_tokens()) == set(self.tickets), "a request was dropped"


@dataclass
class Consumer:
    """A process with one consumer. It stops, revokes and loses connections as a real one does."""

    ctx: ConsumerContext
    random: Random
    member_id: str
    topics: tuple[str, ...]
    pattern: str | None = None
    instance: str | None = None
    rebalance_timeout_ms: int = 10_000
    revocation_ms: int = 500
    """Time that the program takes to give partitions up."""
    adoption_ms: int = 0
    """Time that the program takes to begin to read partitions."""
    repeats: bool = False
    """Whether the request after the first response has all fields, as with librdkafka."""
    connection: int = 1
    numbered: bool = True
    """Whether its connections have different numbers."""
    epoch: int = JOIN_EPOCH
    owned: set[Part] = field(default_factory=set)
    """What the program reads."""
    target: set[Part] = field(default_factory=set)
    running: bool = True
    paused_until_ms: int = 0
    full: bool = True
    """Whether the next request has all fields, because a response was lost."""
    acknowledges: bool = False
    """Whether `owned` has changed since the last response."""
    next_beat_ms: int = 0
    revoked_ms: int | None = None
    """When the revocation under way ends."""
    adopting: tuple[set[Part], int] | None = None
    """What it is about to read, and from when on. A later assignment comes after it."""
    unheard: int = 0
    """Requests since the last response that may have reached the server."""
    heard_ms: int = 0
    """When the server last answered one of its requests."""
    was_fenced: int = 0
    stuck: bool = False

    @property
    def joined(self) -> bool:
        """Whether it believes to be a member."""
        return self.running and self.epoch > 0

    def lose(self) -> None:
        """Stop reading, and begin again as a member with the same id."""
        self.owned, self.target = set(), set()
        self.epoch, self.full, self.acknowledges, self.revoked_ms = JOIN_EPOCH, True, False, None
        self.adopting = None

    def request(self) -> ConsumerHeartbeat:
        """Return the next heartbeat."""
        joins = self.epoch == JOIN_EPOCH
        everything = joins or self.full
        return ConsumerHeartbeat(
            token=None,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=self.rebalance_timeout_ms if everything else -1,
            topics=self.topics if everything else None,
            pattern=(self.pattern or "") if everything else None,
            owned=assignment_of(self.owned) if everything or self.acknowledges else None,
            connection=self.connection,
            facts={name: self.ctx.topics[name] for name in self.topics if everything and name in self.ctx.topics},
        )

    def leaving(self) -> ConsumerHeartbeat:
        """Return the request to leave, after the partitions were given up."""
        epoch = LEAVE_EPOCH if self.instance is None or self.random.random() < 0.3 else STATIC_LEAVE_EPOCH
        return ConsumerHeartbeat(
            token=None,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
            connection=self.connection,
        )

    def disconnect(self) -> None:
        """The response is lost with the connection: say everything again on another one."""
        self.connection += self.numbered
        self.full = True
        self.unheard += 1

    def take(self, result: ConsumerHeartbeatResult) -> None:
        """Act on a response."""
        self.unheard = 0
        match result.error:
            case None:
                self._accept(result)
            case GroupError.FENCED_MEMBER_EPOCH | GroupError.UNKNOWN_MEMBER_ID | GroupError.GROUP_ID_NOT_FOUND:
                self.was_fenced += 1
                self.lose()
                self.next_beat_ms = self.ctx.now_ms
            case GroupError.COORDINATOR_NOT_AVAILABLE:
                self.next_beat_ms = self.ctx.now_ms + 500
            case GroupError.UNRELEASED_INSTANCE_ID:
                self.next_beat_ms = self.ctx.now_ms + 3_000
            case GroupError.FENCED_INSTANCE_ID:
                self.lose()
                self.running = False
            case _:
                raise AssertionError(f"{self.member_id}: {result}")

    def _accept(self, result: ConsumerHeartbeatResult) -> None:
        now_ms = self.ctx.now_ms
        self.full = self.repeats and self.epoch == JOIN_EPOCH
        self.epoch, self.acknowledges = result.member_epoch, False
        self.next_beat_ms = now_ms + (WAITING_MS if result.waits or self.full else INTERVAL_MS)
        if result.assignment is not None:
            self.target = parts_of(result.assignment)
        self._revoke()
        self.reconcile()

    def _revoke(self) -> None:
        if self.owned <= self.target:
            self.revoked_ms = None
        elif self.revoked_ms is None:
            self.revoked_ms = self.ctx.now_ms + self.revocation_ms

    def reconcile(self) -> None:
        """Give up what is not in the target, and then begin to read what is new. Both take time for callbacks."""
        now_ms = self.ctx.now_ms
        if self.adopting is not None:
            parts, from_ms = self.adopting
            if now_ms < from_ms or self.stuck:
                return
            self.adopting = None
            self._use(parts)
            self._revoke()
        if self.revoked_ms is not None:
            if now_ms < self.revoked_ms or self.stuck:
                return
            self.revoked_ms = None
            self._use(self.owned & self.target)
        if self.owned != self.target and self.adoption_ms:
            self.adopting = set(self.target), now_ms + self.adoption_ms
        else:
            self._use(self.target)

    def _use(self, parts: set[Part]) -> None:
        if parts != self.owned:
            self.owned = set(parts)
            self.acknowledges = True
            self.next_beat_ms = min(self.next_beat_ms, self.ctx.now_ms + 1)

    def commit(self, offset: int) -> Commit:
        """Return a commit of all that it reads."""
        names = {facts.topic_id: name for name, facts in self.ctx.topics.items()}
        positions = {
            TopicPartition(names[topic_id], partition): OffsetAndMetadata(offset=offset, topic_id=topic_id)
            for topic_id, partition in self.owned
            if topic_id in names
        }
        return Commit(
            token=None,
            generation=self.epoch,
            member_id=self.member_id,
            instance_id=self.instance,
            positions=positions,
        )


def is_accepted(result: CommitResult) -> bool:
    """Whether all offsets were stored."""
    return result.error is None
