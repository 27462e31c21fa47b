"""Find the member of a classic or consumer group that owns a partition, by the client id and host of a Fetch.

A Fetch names no group or member and uses another connection than the join.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.groups.consumer_subscription import partitions_of
from headrace.groups.model import (
    CONSUMER_FIELD,
    DropBalanced,
    DropField,
    DropGroup,
    DropMember,
    GroupChange,
    SaveBalanced,
    SaveField,
    SaveMember,
    StoredConsumer,
    StoredGroup,
    StoredMember,
    TopicPartition,
)

Client = tuple[str, str]
"""Client id, host."""


class Owner(NamedTuple):
    """A member of a group."""

    group: str
    member: str


class _Member(NamedTuple):
    client: Client
    partitions: frozenset[TopicPartition]


def _assigned(assignment: bytes) -> frozenset[TopicPartition]:
    found = partitions_of(assignment) or {}
    return frozenset(TopicPartition(topic, index) for topic, indexes in found.items() for index in indexes)


def held(consumer: StoredConsumer) -> frozenset[TopicPartition]:
    """Return the partitions of a member of a consumer group, including those that it gives up."""
    return frozenset(
        TopicPartition(grants.topic, partition)
        for grants in consumer.held
        for partitions in grants.granted.values()
        for partition in partitions
    )


def consumer_of(field: str) -> str | None:
    """Return the member whose field of a group this is, if it is a consumer."""
    return field.removeprefix(CONSUMER_FIELD) if field.startswith(CONSUMER_FIELD) else None


class Owners:
    """Members with their clients and partitions, in step with the stored groups."""

    def __init__(self) -> None:
        self._members: dict[Owner, _Member] = {}
        self._by_client: dict[Client, set[Owner]] = {}
        self._by_group: dict[str, set[str]] = {}
        """Group -> its members, and `section:<topic>` for each topic that the server assigns in it."""

    def load(self, stored: StoredGroup) -> None:
        """Load a stored group."""
        for member in stored.members:
            self._add(stored.name, member)
        for value in stored.fields:
            if isinstance(value, StoredConsumer):
                self._add_consumer(stored.name, value)
        for section in stored.balanced:
            self._by_group.setdefault(stored.name, set()).add(_section(section.topic))

    def apply(self, group: str, changes: Iterable[GroupChange]) -> None:
        """Apply stored changes."""
        for change in changes:
            match change:
                case SaveMember(member):
                    self._add(group, member)
                case DropMember(member_id):
                    self._remove(Owner(group, member_id))
                case SaveField(value) if isinstance(value, StoredConsumer):
                    self._add_consumer(group, value)
                case DropField(field) if (consumer := consumer_of(field)) is not None:
                    self._remove(Owner(group, consumer))
                case SaveBalanced(section):
                    self._by_group.setdefault(group, set()).add(_section(section.topic))
                case DropBalanced(topic):
                    self._discard(group, _section(topic))
                case DropGroup():
                    for name in self._by_group.pop(group, set()):
                        self._remove(Owner(group, name))
                case _:
                    pass

    def _add(self, group: str, member: StoredMember) -> None:
        client = (member.client_id, member.client_host)
        self._put(Owner(group, member.member_id), _Member(client, _assigned(member.assignment)))

    def _add_consumer(self, group: str, consumer: StoredConsumer) -> None:
        client = (consumer.client_id, consumer.client_host)
        self._put(Owner(group, consumer.member_id), _Member(client, held(consumer)))

    def _put(self, owner: Owner, member: _Member) -> None:
        self._remove(owner)
        self._members[owner] = member
        self._by_client.setdefault(member.client, set()).add(owner)
        self._by_group.setdefault(owner.group, set()).add(owner.member)

    def _remove(self, owner: Owner) -> None:
        known = self._members.pop(owner, None)
        if known is not None:
            same = self._by_client[known.client]
            same.discard(owner)
            if not same:
                del self._by_client[known.client]
            self._discard(owner.group, owner.member)

    def _discard(self, group: str, name: str) -> None:
        names = self._by_group.get(group, set())
        names.discard(name)
        if not names:
            self._by_group.pop(group, None)

    def find(self, client: Client, partition: TopicPartition) -> Owner | None:
        """Return the member for a client's Fetch of a partition; None if it is not exactly one."""
        owners = [owner for owner in self._by_client.get(client, ()) if partition in self._members[owner].partitions]
        return owners[0] if len(owners) == 1 else None

    def partitions(self, owner: Owner) -> frozenset[TopicPartition]:
        """Return the partitions of a member."""
        known = self._members.get(owner)
        return known.partitions if known is not None else frozenset()

    def has_members(self, group: str) -> bool:
        """Whether a group has members or a balanced section."""
        return group in self._by_group


def _section(topic: str) -> str:
    return f"section:{topic}"
