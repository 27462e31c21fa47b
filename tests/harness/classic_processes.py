"""Members of the classic protocol as their clients run them, in a group that may have consumers, too."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace.groups.consumer_subscription import assignment, owned_partitions, partitions_of, topics_of
from headrace.groups.effects import HeartbeatResult, JoinResult, SyncResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Heartbeat, Join, Leave, Leaving, Sync
from tests.harness.consumer_processes import ConsumerContext, Part
from tests.harness.groups import Ticket, subscription

SESSION_MS = 45_000


@dataclass
class ClassicProcess:
    """A process with one classic member. An eager one gives up everything before it joins."""

    ctx: ConsumerContext
    random: Random
    name: str
    topics: tuple[str, ...]
    cooperative: bool
    rebalance_timeout_ms: int = 30_000
    member_id: str = ""
    generation: int = -1
    owned: set[Part] = field(default_factory=set)
    """What the program reads."""
    ticket: Ticket[Any] | None = None
    running: bool = True
    paused_until_ms: int = 0
    next_beat_ms: int = 0
    instance: str | None = None
    pattern: str | None = None
    stuck: bool = False

    @property
    def joined(self) -> bool:
        """Whether it believes to be a member."""
        return self.running and self.generation >= 0

    @property
    def protocol(self) -> str:
        """Name of its protocol."""
        return "cooperative-sticky" if self.cooperative else "range"

    def lose(self) -> None:
        """Stop reading, and begin again."""
        self.owned, self.member_id, self.generation, self.ticket = set(), "", -1, None

    def act(self) -> None:
        """What is due: take a response, or send the next request."""
        if self.ticket is not None:
            if self.ticket.lost:
                # It joins again with what it has.
                self.ticket, self.generation = None, -1
            elif not self.ticket.held:
                ticket, self.ticket = self.ticket, None
                self._take(ticket.result)
        elif self.generation < 0:
            self._join()
        elif self.ctx.now_ms >= self.next_beat_ms:
            self.next_beat_ms = self.ctx.now_ms + 1_000
            self.ticket = self.ctx.request(
                Heartbeat(token=None, generation=self.generation, member_id=self.member_id, instance_id=None)
            )

    def _join(self) -> None:
        if not self.cooperative:
            self.owned = set()
        names = {facts.topic_id: name for name, facts in self.ctx.topics.items()}
        owned: dict[str, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            owned.setdefault(names[topic_id], []).append(partition)
        metadata = subscription(*self.topics)[:-4] + assignment(owned)[2:-4]
        self.ticket = self.ctx.request(
            Join(
                token=None,
                member_id=self.member_id,
                instance_id=None,
                client_id=self.name,
                client_host="/127.0.0.1",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                protocol_type="consumer",
                protocols=((self.protocol, metadata),),
                new_member_id=f"{self.name}-{self.random.getrandbits(48)}",
                member_id_required=False,
                skip_assignment_supported=True,
            )
        )

    def _take(self, result: JoinResult | SyncResult | HeartbeatResult) -> None:
        match result:
            case JoinResult(error=None):
                self.member_id, self.generation = result.member_id, result.generation
                assignments = self._assign(result) if result.leader == result.member_id else {}
                self.ticket = self.ctx.request(
                    Sync(
                        token=None,
                        generation=self.generation,
                        member_id=self.member_id,
                        instance_id=None,
                        protocol_type="consumer",
                        protocol=result.protocol,
                        assignments=assignments,
                    )
                )
            case SyncResult(error=None):
                self._assigned(result.assignment)
            case HeartbeatResult(error=None):
                pass
            case _ if result.error is GroupError.REBALANCE_IN_PROGRESS:
                self.generation = -1
                if isinstance(result, JoinResult):
                    self.member_id = result.member_id or self.member_id
            case _ if result.error is GroupError.ILLEGAL_GENERATION:
                self.owned, self.generation = set(), -1
            case _ if result.error is GroupError.UNKNOWN_MEMBER_ID:
                self.lose()
            case _:
                raise AssertionError(f"{self.name}: {result}")

    def _assigned(self, assigned: bytes) -> None:
        found = partitions_of(assigned) or {}
        mine = {(self.ctx.topics[name].topic_id, each) for name, parts in found.items() for each in parts}
        if self.owned - mine:
            # What it gives up reaches others when it has joined again.
            self.generation = -1
        self.owned = mine

    def _assign(self, joined: JoinResult) -> dict[str, bytes]:
        """As leader: in turn, but nothing that another member still has."""
        shares: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in joined.members}
        owners = {
            (name, each): member.member_id
            for member in joined.members
            for name, parts in owned_partitions(member.metadata).items()
            for each in parts
        }
        turn = 0
        for name, facts in sorted(self.ctx.topics.items()):
            readers = [each.member_id for each in joined.members if name in (topics_of(each.metadata) or ())]
            for partition in range(facts.partitions if readers else 0):
                turn += 1
                who = readers[turn % len(readers)]
                if owners.get((name, partition), who) == who:
                    shares[who].setdefault(name, []).append(partition)
        return {who: assignment(share) for who, share in shares.items()}

    def leave(self) -> None:
        """Leave in good order."""
        if self.member_id:
            self.ctx.request(Leave(token=None, members=(Leaving(member_id=self.member_id),)))
        self.lose()
