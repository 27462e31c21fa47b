"""A member of a consumer group while the server runs."""

from collections.abc import Iterable, Mapping
from enum import Enum
from uuid import UUID

from headrace.groups.assignment.holdings import Holdings, MemberKey, Topic
from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.description import Client
from headrace.groups.events import Join
from headrace.groups.model import Assignment, StoredConsumer, StoredGrants, StoredPartitions

Parts = dict[Topic, set[int]]
"""Partitions by topic, without empty sets."""
Protocols = tuple[tuple[str, bytes], ...]
"""Names and metadata of a classic member, in order of preference."""

MEMBER_BYTES = 1_500
"""Bytes charged per member in addition to its data."""
PARTITION_BYTES = 250
"""Bytes charged per assigned partition, with its owner and its target."""

_ADOPTION_MS = 10_000
"""Time for a client to name partitions as owned. It may never do so, for example without the right to read them."""
_TOPIC_BYTES = 100
_NO_ID = UUID(int=0)
_NONE: frozenset[int] = frozenset()


class MemberState(Enum):
    """What a member waits for."""

    STABLE = "STABLE"
    """Nothing."""
    UNREVOKED = "UNREVOKED"
    """Its acknowledgement that it has given up partitions, within its rebalance timeout."""
    UNRELEASED = "UNRELEASED"
    """Other members, which have partitions of its target."""


class Member:
    """State of one member. `Holdings` has its partitions."""

    __slots__ = (
        "adopting",
        "adopting_since_ms",
        "assignor",
        "client_host",
        "client_id",
        "connection",
        "epoch",
        "has_left",
        "instance_id",
        "matched",
        "member_id",
        "pattern",
        "previous_epoch",
        "protocols",
        "rack_id",
        "rebalance_timeout_ms",
        "revoking",
        "session_timeout_ms",
        "size",
        "state",
        "topics",
    )

    def __init__(self, request: ConsumerHeartbeat) -> None:
        self.member_id = request.member_id
        self.instance_id = request.instance_id
        self.rack_id = request.rack_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.connection = request.connection
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.topics: tuple[str, ...] = ()
        self.pattern = ""
        self.matched: frozenset[str] | None = None
        """Topics of the pattern. None: not known yet."""
        self.assignor: str | None = None
        self.epoch = 0
        self.previous_epoch = 0
        self.state = MemberState.STABLE
        self.revoking: Parts = {}
        """Part of what it holds. It no longer belongs to its assignment."""
        self.adopting: Parts = {}
        """Partitions that it was assigned and has not named as owned yet. It may begin to read them at any time."""
        self.adopting_since_ms = 0
        """When it was last assigned such partitions (ticks)."""
        self.has_left = False
        self.session_timeout_ms: int | None = None
        """Of a classic member."""
        self.protocols: Protocols = ()
        """Of a classic member."""
        self.size = 0
        """Bytes charged for it."""

    @classmethod
    def of_classic(cls, join: Join) -> "Member":
        """Return a new member with the classic protocol."""
        member = cls(
            ConsumerHeartbeat(
                token=None,
                member_id=join.member_id or join.new_member_id,
                member_epoch=0,
                instance_id=join.instance_id,
                client_id=join.client_id,
                client_host=join.client_host,
            )
        )
        member.use_classic(join)
        return member

    def use_classic(self, join: Join) -> None:
        """Take over the details of a classic member's request."""
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms, self.rebalance_timeout_ms = join.session_timeout_ms, join.rebalance_timeout_ms
        self.protocols = join.protocols

    @property
    def is_classic(self) -> bool:
        """Whether it uses the classic protocol (JoinGroup)."""
        return self.session_timeout_ms is not None

    @classmethod
    def restore(cls, stored: StoredConsumer) -> "Member":
        """Return the stored member. Raise ValueError if its state is unknown."""
        member = cls.__new__(cls)
        member.member_id = stored.member_id
        member.instance_id = stored.instance_id
        member.rack_id = stored.rack_id
        member.client_id = stored.client_id
        member.client_host = stored.client_host
        member.connection = 0
        member.rebalance_timeout_ms = stored.rebalance_timeout_ms
        member.topics = stored.topics
        member.pattern = stored.pattern
        member.matched = None
        member.assignor = stored.assignor
        member.epoch = stored.epoch
        member.previous_epoch = stored.previous_epoch
        member.state = MemberState(stored.state)
        member.revoking = {
            Topic(each.topic, each.topic_id): set(each.partitions) for each in stored.revoking if each.partitions
        }
        member.adopting, member.adopting_since_ms = {}, 0
        member.has_left = stored.has_left
        member.session_timeout_ms = stored.session_timeout_ms
        member.protocols = stored.protocols
        member.size = member.charged()
        return member

    def stored(self, holdings: Holdings[MemberKey]) -> StoredConsumer:
        """Return its stored form."""
        return StoredConsumer(
            member_id=self.member_id,
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topics=self.topics,
            pattern=self.pattern,
            assignor=self.assignor,
            epoch=self.epoch,
            previous_epoch=self.previous_epoch,
            state=self.state.value,
            held=tuple(_grants(topic, epochs) for topic, epochs in holdings.held_since(self.member_id).items()),
            revoking=_stored(self.revoking),
            target=_stored(holdings.target(self.member_id)),
            has_left=self.has_left,
            session_timeout_ms=self.session_timeout_ms,
            protocols=self.protocols,
        )

    def charged(self) -> int:
        """Return the bytes charged for its data, without partitions."""
        texts = (self.member_id, self.client_id, self.instance_id, self.rack_id, self.pattern, self.assignor)
        size = MEMBER_BYTES + sum(2 * len(text.encode()) for text in texts if text)
        size += sum(_TOPIC_BYTES + len(topic) for topic in self.topics)
        size += sum(_TOPIC_BYTES + len(name) + len(metadata) for name, metadata in self.protocols)
        return size + _TOPIC_BYTES * len(self.matched or ())

    @property
    def client(self) -> Client:
        """Its client."""
        return Client(self.client_id, self.client_host, rebalance_timeout_ms=self.rebalance_timeout_ms)

    @property
    def subscription(self) -> frozenset[str]:
        """Its known topics."""
        return frozenset(self.topics) | (self.matched or frozenset())

    def assigned(self, holdings: Holdings[MemberKey]) -> Parts:
        """Return its partitions without those that it must give up."""
        held = holdings.held(self.member_id)
        for topic, partitions in self.revoking.items():
            if topic in held:
                held[topic] -= partitions
                if not held[topic]:
                    del held[topic]
        return held

    def expect(self, parts: Parts, now_ms: int) -> None:
        """Add partitions that its next response assigns."""
        for topic, partitions in parts.items():
            self.adopting.setdefault(topic, set()).update(partitions)
        self.adopting_since_ms = now_ms

    def adopted(self, owned: Assignment) -> None:
        """Remove partitions that it names as owned."""
        named: dict[UUID | None, tuple[int, ...]] = dict(owned)
        for topic in [topic for topic in self.adopting if topic.id in named]:
            self.adopting[topic].difference_update(named[topic.id])
            if not self.adopting[topic]:
                del self.adopting[topic]

    def may_adopt(self, parts: Parts, now_ms: int) -> bool:
        """Return whether it may begin to read one of these partitions, because of an earlier response."""
        if now_ms >= self.adopting_since_ms + _ADOPTION_MS:
            return False
        return any(not self.adopting[topic].isdisjoint(parts[topic]) for topic in self.adopting.keys() & parts.keys())

    def renew(self, epoch: int, state: MemberState) -> None:
        """Enter a state. The epoch before it is accepted once more, also if it is the same."""
        self.previous_epoch, self.epoch, self.state = self.epoch, epoch, state


def as_assignment(parts: Parts) -> Assignment:
    """Return partitions as a response has them."""
    return tuple((topic.id or _NO_ID, tuple(sorted(partitions))) for topic, partitions in sorted(parts.items()))


def owns_any(owned: Assignment, parts: Parts) -> bool:
    """Return whether `owned` has one of these partitions."""
    named = {topic.id: partitions for topic, partitions in parts.items()}
    return any(topic_id in named and not named[topic_id].isdisjoint(partitions) for topic_id, partitions in owned)


def owns_only(owned: Assignment, parts: Parts) -> bool:
    """Return whether `owned` has only these partitions."""
    named = {topic.id: partitions for topic, partitions in parts.items()}
    return all(not partitions or named.get(topic_id, _NONE).issuperset(partitions) for topic_id, partitions in owned)


def _stored(parts: Mapping[Topic, Iterable[int]]) -> tuple[StoredPartitions, ...]:
    return tuple(
        StoredPartitions(topic.name, topic.id or _NO_ID, tuple(sorted(partitions)))
        for topic, partitions in parts.items()
    )


def _grants(topic: Topic, epochs: Mapping[int, int]) -> StoredGrants:
    granted: dict[int, list[int]] = {}
    for partition, epoch in epochs.items():
        granted.setdefault(epoch, []).append(partition)
    return StoredGrants(topic.name, topic.id or _NO_ID, {epoch: tuple(parts) for epoch, parts in granted.items()})
