"""Who owns which partition: members of classic groups, found by the client and host that a Fetch comes from.

A Fetch names no group and no member, and comes on another connection than the join. What it shares with it are the
client's id and host.
"""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.groups.assignments import partitions_of
from headrace.groups.model import (
    DropBalanced,
    DropGroup,
    DropMember,
    GroupChange,
    SaveBalanced,
    SaveMember,
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


class Owners:
    """Members with their clients and partitions, kept in step with what is stored of the groups."""

    def __init__(self) -> None:
        self._members: dict[Owner, _Member] = {}
        self._by_client: dict[Client, set[Owner]] = {}
        self._sections: set[tuple[str, str]] = set()

    def load(self, stored: StoredGroup) -> None:
        """Take over a group as it is stored."""
        for member in stored.members:
            self._add(stored.name, member)
        self._sections.update((stored.name, section.topic) for section in stored.balanced)

    def apply(self, group: str, changes: Iterable[GroupChange]) -> None:
        """Take over what was stored."""
        for change in changes:
            match change:
                case SaveMember(member):
                    self._add(group, member)
                case DropMember(member_id):
                    self._remove(Owner(group, member_id))
                case SaveBalanced(section):
                    self._sections.add((group, section.topic))
                case DropBalanced(topic):
                    self._sections.discard((group, topic))
                case DropGroup():
                    for owner in [each for each in self._members if each.group == group]:
                        self._remove(owner)
                    self._sections = {each for each in self._sections if each[0] != group}
                case _:
                    pass

    def _add(self, group: str, member: StoredMember) -> None:
        owner = Owner(group, member.member_id)
        self._remove(owner)
        client = (member.client_id, member.client_host)
        self._members[owner] = _Member(client, partitions_of(member.assignment))
        self._by_client.setdefault(client, set()).add(owner)

    def _remove(self, owner: Owner) -> None:
        known = self._members.pop(owner, None)
        if known is not None:
            same = self._by_client[known.client]
            same.discard(owner)
            if not same:
                del self._by_client[known.client]

    def find(self, client: Client, partition: TopicPartition) -> Owner | None:
        """The member that a client's Fetch of a partition is for; None where there is none, or more than one."""
        owners = [owner for owner in self._by_client.get(client, ()) if partition in self._members[owner].partitions]
        return owners[0] if len(owners) == 1 else None

    def partitions(self, owner: Owner) -> frozenset[TopicPartition]:
        """What a member owns."""
        known = self._members.get(owner)
        return known.partitions if known is not None else frozenset()

    def anybody_in(self, group: str) -> bool:
        """Whether a group has members, or is shared out by the server."""
        return any(owner.group == group for owner in self._members) or any(name == group for name, _ in self._sections)
