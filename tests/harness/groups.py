"""A classic group on a manual clock: requests of members, and all responses and effects of the group.

Effects are executed as in the running server: changes are stored in memory first, timers fire when the clock passes
them, and each response goes to its request. The invariants are checked after every event, in every test.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar, cast

import msgspec

from headrace.groups.configs import Configs
from headrace.groups.effects import (
    CommitResult,
    DeleteGroupResult,
    DeleteOffsetsResult,
    Effect,
    EndOffsetsResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    Result,
    SyncResult,
)
from headrace.groups.errors import GroupError
from headrace.groups.events import (
    Commit,
    DeleteGroup,
    DeleteOffsets,
    DropTopic,
    EndOffsets,
    Event,
    Heartbeat,
    Join,
    Leave,
    Leaving,
    Request,
    Sync,
    TimerFired,
    TxnOffsetCommit,
)
from headrace.groups.group import Group
from headrace.groups.model import GroupSettings, OffsetAndMetadata, StoredGroup, TopicFacts, TopicPartition
from headrace.groups.snapshot import Snapshot
from headrace.groups.timers import TimerKey, TimerKind
from headrace.groups.turn import UNBOUNDED
from headrace.machines.effects import CancelTimer, Command, Now, Persist, Reply, SetTimer

SESSION_MS = 10_000
REBALANCE_MS = 60_000

R = TypeVar("R", bound=Result)


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that reads these topics (version 1, no user data, nothing owned)."""
    names = b"".join(len(topic.encode()).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + b"\0\0\0\0"


@dataclass(eq=False)
class Ticket(Generic[R]):
    """A request that was sent, and its answer once there is one. It is the token, too."""

    number: int
    request: Request | None = None
    results: list[R] = field(default_factory=list)
    lost: bool = False
    """The server went down before it answered."""

    @property
    def held(self) -> bool:
        """Whether the request still waits."""
        return not self.results and not self.lost

    @property
    def result(self) -> R:
        """The answer; fails when there is none yet."""
        assert len(self.results) == 1, f"{self.request} has {len(self.results)} answers"
        return self.results[0]

    @property
    def error(self) -> GroupError | None:
        """The answer's error, None if it has none; fails when there is no answer yet."""
        found: GroupError | None = cast("Any", self.result).error
        return found


class GroupContext:
    """One group, its storage, its timers and its clients' requests."""

    def __init__(
        self, settings: GroupSettings | None = None, name: str = "group", configs: Configs | None = None
    ) -> None:
        self.settings = settings or GroupSettings()
        self.configs = configs or Configs()
        self.now_ms = 1_000_000
        self.stepped_ms = 0
        """How far the wall clock was set forward, or back, of what has passed."""
        self.storage = Snapshot.empty(name)
        self._take_up(Group(name, self.settings, configs=self.configs, facts=self.look_up))
        self.timers: dict[TimerKey, int] = {}
        self.effects: list[Effect] = []
        """The effects of the last event."""
        self.tickets: list[Ticket[Any]] = []
        self.room = UNBOUNDED
        """Memory that the server has left."""
        self.checking = True
        """Whether to check after every event what must always hold: one pass over the members each time."""
        self._numbers = count(1)

    def look_up(self, topic: str) -> TopicFacts | None:
        """Return a topic that the server knows. It may know none: subclasses do."""
        return None

    def _take_up(self, whole: Group) -> None:
        self.whole = whole
        self.group = whole.classic

    # verbs

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        version: int = 9,
        protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("flights")),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "client",
    ) -> Ticket[JoinResult]:
        """Send a JoinGroup of a version. A new member's id is `m<n>`, or `<instance>-<n>`."""
        ticket: Ticket[JoinResult] = self._ticket()
        return self._request(
            ticket,
            Join(
                token=ticket,
                member_id=member_id,
                instance_id=instance,
                client_id=client_id,
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                new_member_id=f"{instance}-{ticket.number}" if instance else f"m{ticket.number}",
                member_id_required=version >= 4,
                skip_assignment_supported=version >= 9,
            ),
        )

    def form(self, *joins: Ticket[JoinResult]) -> list[str]:
        """Let joins that are held end in a generation, and sync all of its members; their ids, the leader's first.

        Each member is assigned its own id, in bytes.
        """
        while any(join.held for join in joins):
            self.sleep(self.settings.initial_rebalance_delay_ms)
        members = sorted((join.result.member_id for join in joins), key=lambda each: each != joins[0].result.leader)
        assignments = {member_id: member_id.encode() for member_id in members}
        syncs = [
            self.sync(member_id, assignments=assignments, protocol_type=None, protocol=None)
            for member_id in reversed(members)
        ]
        assert [sync.error for sync in syncs] == [None] * len(syncs)
        return members

    def stable(self, size: int) -> list[str]:
        """Make a stable group of dynamic members; their ids, the leader's first."""
        return self.form(*(self.join(version=3) for _ in range(size)))

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Ticket[SyncResult]:
        """Send a SyncGroup, of the present generation if none is said."""
        ticket: Ticket[SyncResult] = self._ticket()
        return self._request(
            ticket,
            Sync(
                token=ticket,
                generation=self.group.generation if generation is None else generation,
                member_id=member_id,
                instance_id=instance,
                protocol_type=protocol_type,
                protocol=protocol,
                assignments=assignments or {},
            ),
        )

    def heartbeat(
        self, member_id: str, generation: int | None = None, *, instance: str | None = None
    ) -> Ticket[HeartbeatResult]:
        """Send a Heartbeat, of the present generation if none is said."""
        ticket: Ticket[HeartbeatResult] = self._ticket()
        generation = self.group.generation if generation is None else generation
        event = Heartbeat(token=ticket, generation=generation, member_id=member_id, instance_id=instance)
        return self._request(ticket, event)

    def leave(self, *members: str | Leaving) -> Ticket[LeaveResult]:
        """Send a LeaveGroup for these members."""
        ticket: Ticket[LeaveResult] = self._ticket()
        leaving = tuple(who if isinstance(who, Leaving) else Leaving(member_id=who) for who in members)
        return self._request(ticket, Leave(token=ticket, members=leaving))

    def commit(
        self,
        member_id: str,
        generation: int | None = None,
        *,
        instance: str | None = None,
        topic: str = "flights",
        partition: int = 0,
        offset: int = 1,
        metadata: str = "",
    ) -> Ticket[CommitResult]:
        """Send an OffsetCommit of one position."""
        position = OffsetAndMetadata(offset=offset, metadata=metadata)
        return self.commit_all(
            member_id, {TopicPartition(topic, partition): position}, generation=generation, instance=instance
        )

    def commit_all(
        self,
        member_id: str,
        positions: dict[TopicPartition, OffsetAndMetadata],
        *,
        generation: int | None = None,
        instance: str | None = None,
    ) -> Ticket[CommitResult]:
        """Send an OffsetCommit, of the present generation if none is said."""
        ticket: Ticket[CommitResult] = self._ticket()
        return self._request(
            ticket,
            Commit(
                token=ticket,
                generation=self.group.generation if generation is None else generation,
                member_id=member_id,
                instance_id=instance,
                positions=positions,
            ),
        )

    def txn_commit(
        self,
        positions: dict[TopicPartition, OffsetAndMetadata],
        *,
        producer_id: int = 7,
        epoch: int = 0,
        number: int = 1,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
    ) -> Ticket[CommitResult]:
        """Send a TxnOffsetCommit of a verified transaction, without a member if none is said."""
        ticket: Ticket[CommitResult] = self._ticket()
        return self._request(
            ticket,
            TxnOffsetCommit(
                token=ticket,
                transactional_id=f"tx-{producer_id}",
                producer_id=producer_id,
                producer_epoch=epoch,
                generation=generation,
                member_id=member_id,
                instance_id=instance,
                positions=positions,
                number=number,
                guard=self.whole.guard(producer_id),
            ),
        )

    def end_offsets(
        self, *, commit: bool, producer_id: int = 7, epoch: int = 0, number: int = 1
    ) -> Ticket[EndOffsetsResult]:
        """End a transaction."""
        ticket: Ticket[EndOffsetsResult] = self._ticket()
        end = EndOffsets(token=ticket, producer_id=producer_id, producer_epoch=epoch, commit=commit, number=number)
        return self._request(ticket, end)

    def delete_group(self) -> Ticket[DeleteGroupResult]:
        """Ask for the deletion of the group."""
        ticket: Ticket[DeleteGroupResult] = self._ticket()
        return self._request(ticket, DeleteGroup(ticket))

    def delete_offsets(self, *partitions: TopicPartition) -> Ticket[DeleteOffsetsResult]:
        """Ask for the deletion of positions."""
        ticket: Ticket[DeleteOffsetsResult] = self._ticket()
        return self._request(ticket, DeleteOffsets(ticket, partitions))

    def drop_topic(self, topic: str) -> None:
        """Notify the group that a topic was deleted."""
        self.send(DropTopic(topic))

    def sleep(self, duration_ms: int) -> None:
        """Let time pass, and fire each timer that falls due, in order."""
        until = self.now_ms + duration_ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key])
            if self.timers[key] > until:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.send(TimerFired(key))
        self.now_ms = until

    def restart(self) -> None:
        """The server goes down and comes back: what waits is lost, what is stored is not."""
        for ticket in self.tickets:
            ticket.lost = ticket.lost or ticket.held
        self.tickets = []
        self.timers = {}
        whole, effects = Group.restore(self.stored, self.settings, self.now, self.configs, self.look_up)
        assert all(isinstance(effect, SetTimer | Command) for effect in effects)
        self._take_up(whole)
        self.carry_out(effects)

    # what happened

    @property
    def stored(self) -> StoredGroup:
        """What storage has of the group."""
        return self.storage.stored

    @property
    def persisted(self) -> bool:
        """Whether the last event changed anything in storage."""
        return any(isinstance(effect, Persist) for effect in self.effects)

    def remaining_ms(self, key: TimerKey) -> int | None:
        """How long a timer has still to run; None when it is not set."""
        return self.timers[key] - self.now_ms if key in self.timers else None

    # machinery

    @property
    def now(self) -> Now:
        """The time by both clocks; `now_ms` counts what has passed."""
        return Now(self.now_ms + self.stepped_ms, self.now_ms)

    def send(self, event: Event) -> None:
        """Hand the group an event, carry out its effects, and check what must always hold."""
        self.carry_out(self.whole.handle(event, self.now, room=self.room))

    def carry_out(self, effects: list[Effect]) -> None:
        """Do what the group asks, in order; a test may override this to fail half way."""
        self.effects = effects
        acted = False
        for effect in effects:
            match effect:
                case Persist(changes):
                    assert changes, "an empty change"
                    assert not acted, "something was done or answered before it was durable"
                    self.storage.apply(changes)
                case SetTimer(key, deadline_ms):
                    self.timers[key] = deadline_ms
                case CancelTimer(key):
                    self.timers.pop(key, None)
                case Reply(token, result):
                    assert isinstance(token, Ticket)
                    assert token.held, f"answered twice: {token.request}"
                    cast("list[Result]", token.results).append(result)
            acted = acted or not isinstance(effect, Persist)
        if self.checking:
            self._check()

    def repeat(self, request: Request) -> Ticket[Any]:
        """Send a request again, as another one: what arrives twice or late looks like this."""
        ticket = self._ticket()
        again = msgspec.structs.replace(request, token=ticket)
        if isinstance(again, Join):
            again = msgspec.structs.replace(again, new_member_id=f"again-{ticket.number}")
        return self._request(ticket, again)

    def _ticket(self) -> Ticket[Any]:
        return Ticket(next(self._numbers))

    def _request(self, ticket: Ticket[R], request: Request) -> Ticket[R]:
        ticket.request = request
        self.tickets.append(ticket)
        self.send(request)
        return ticket

    def _check(self) -> None:
        assert self.timers == self.whole.deadlines, "the group does not know its timers"
        self.tickets = [ticket for ticket in self.tickets if ticket.held]
        assert set(self.whole.held_tokens()) == set(self.tickets), "a request was dropped"
        members = {member.member_id for member in self.group.describe().members}
        watched = {key.member_id for key in self.timers if key.kind is TimerKind.SESSION}
        assert watched <= members, f"timers of members that left: {watched - members}"
        waiting = {
            member
            for member in members
            for ticket in self.tickets
            if isinstance(ticket.request, Join | Sync) and self._sender(ticket.request) == member
        }
        syncing = {ticket.request.member_id for ticket in self.tickets if isinstance(ticket.request, Sync)}
        assert not watched & syncing, f"timers of members whose sync is held: {watched & syncing}"
        assert members - watched <= waiting, f"members that would never expire: {members - watched - waiting}"

    @staticmethod
    def _sender(request: Join | Sync) -> str:
        if isinstance(request, Join):
            return request.member_id or request.new_member_id
        return request.member_id
