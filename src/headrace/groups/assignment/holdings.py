"""Owners and targets of a group's partitions.

A partition is granted only while it has no owner. Only its owner gives it up, or loses it when it leaves the group.
Therefore two members never own a partition at once.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

Who = TypeVar("Who", bound=Hashable)
"""Key of a member (`MemberKey`)."""


class InstanceKey(NamedTuple):
    """An OCI instance. It takes part in one topic."""

    topic: str
    name: str


MemberKey = str | InstanceKey
"""The member ID of a consumer, or an instance."""


class Topic(NamedTuple):
    """A topic with its ID, which a later topic of the same name does not have."""

    name: str
    id: UUID | None


class _Table(Generic[Who]):
    """Partitions of a topic."""

    __slots__ = ("count", "owners", "targets")

    def __init__(self) -> None:
        self.count = 0
        self.owners: dict[int, tuple[Who, int]] = {}
        """Partition -> owner, epoch of the grant."""
        self.targets: dict[int, Who] = {}


class Holdings(Generic[Who]):
    """Owners and targets of all partitions of a group.

    Methods that return partitions of a member return new dicts without empty sets, in O(its partitions). `epoch` counts
    changes of the group. `target_epoch` is the one that the target was computed for.
    """

    def __init__(self, epoch: int = 0, target_epoch: int = 0) -> None:
        self.epoch = epoch
        self.target_epoch = target_epoch
        self.changes = 0
        """Number of changes of owners and targets, to detect changes."""
        self._members: dict[Who, frozenset[str]] = {}
        self._subscribers: Counter[str] = Counter()
        self._tables: dict[Topic, _Table[Who]] = {}
        self._current: dict[str, Topic] = {}
        """Existing topics. Tables of other ones remain while a member holds their partitions."""
        self._held: dict[Who, dict[Topic, set[int]]] = {}
        self._targets: dict[Who, dict[Topic, set[int]]] = {}

    # changes of the group

    def subscribe(self, who: Who, topics: Iterable[str]) -> None:
        """Set the topics of a member, which may be new. A change raises `epoch`."""
        topics = frozenset(topics)
        before = self._members.get(who)
        if before != topics:
            self._add(who, topics, before or frozenset())
            self.epoch += 1

    def leave(self, who: Who) -> None:
        """Remove a member, free its partitions, and raise `epoch`."""
        self.changes += 1
        self._subscribers.subtract(self._members.pop(who))
        for topic, partitions in self._targets.pop(who).items():
            for partition in partitions:
                del self._tables[topic].targets[partition]
            self._drop_unused(topic)
        for topic, partitions in self._held.pop(who).items():
            self._free(topic, partitions)
        self.epoch += 1

    def replace(self, who: Who, other: Who) -> None:
        """Rename a static member that returns under another ID. It keeps everything, and no epoch changes."""
        if other in self._members:
            raise ValueError(f"{other!r} is a member")
        self.changes += 1
        self._members = {other if member == who else member: topics for member, topics in self._members.items()}
        self._held[other] = self._held.pop(who)
        self._targets[other] = self._targets.pop(who)
        for topic, partitions in self._held[other].items():
            owners = self._tables[topic].owners
            owners.update((partition, (other, owners[partition][1])) for partition in partitions)
        for topic, partitions in self._targets[other].items():
            self._tables[topic].targets.update(dict.fromkeys(partitions, other))

    def topic(self, name: str, topic_id: UUID | None, partitions: int | None) -> None:
        """Set the ID and the number of partitions of a topic. None: it does not exist.

        A change raises `epoch` if a member is subscribed. Removed partitions are due to no member, and owners give them
        up after the next `aim`. Those of a recreated topic are others.
        """
        before = self._current.get(name)
        now = None if partitions is None else Topic(name, topic_id)
        if now == before and (now is None or self._tables[now].count == partitions):
            return
        self.changes += 1
        if now is None:
            del self._current[name]
        else:
            self._current[name] = now
            self._tables.setdefault(now, _Table()).count = partitions or 0
        if before is not None:
            self._drop_unused(before)
        if self._subscribers[name] > 0:
            self.epoch += 1

    def aim(self, targets: Mapping[Who, Mapping[str, Collection[int]]]) -> None:
        """Replace the target, which must be computed from the present state, and set `target_epoch`."""
        self.changes += 1
        for topic, table in list(self._tables.items()):
            table.targets.clear()
            self._drop_unused(topic)
        self._targets = {who: {} for who in self._members}
        for who, topics in targets.items():
            for name, partitions in topics.items():
                if partitions:
                    self._aim(who, self._current[name], partitions)
        self.target_epoch = self.epoch

    # moves

    def grant(self, who: Who, parts: Mapping[Topic, Collection[int]], epoch: int) -> None:
        """Make a member the owner of partitions of its target that have no owner.

        Commits of epochs before `epoch` do not belong to this ownership.
        """
        self.changes += bool(parts)
        for topic, partitions in parts.items():
            table = self._tables[topic]
            for partition in partitions:
                assert partition not in table.owners, f"{topic.name}-{partition} has an owner"
                assert table.targets.get(partition) == who, f"{topic.name}-{partition} is for another member"
                table.owners[partition] = (who, epoch)
            self._held[who].setdefault(topic, set()).update(partitions)

    def give_up(self, who: Who, parts: Mapping[Topic, Collection[int]]) -> None:
        """Free partitions that a member owns."""
        held = self._held[who]
        self.changes += bool(parts)
        for topic, partitions in parts.items():
            if partitions:
                assert held.get(topic, set()).issuperset(partitions), f"{who!r} does not own all of {topic.name!r}"
                held[topic].difference_update(partitions)
                if not held[topic]:
                    del held[topic]
                self._free(topic, partitions)

    # restoring

    def restore(
        self,
        who: Who,
        topics: Iterable[str],
        held: Mapping[Topic, Mapping[int, int]],
        target: Mapping[Topic, Collection[int]],
    ) -> None:
        """Add a stored member, in the order of `members`, without raising an epoch.

        `held` is that of `held_since`. Topics have the partitions that targets name: `topic` raises the epoch only if
        they have changed since. Raise ValueError if a partition has two owners.
        """
        self._add(who, frozenset(topics), frozenset())
        for topic, partitions in target.items():
            if partitions:
                self._restore_target(who, topic, partitions)
        for topic, granted in held.items():
            owners = self._tables.setdefault(topic, _Table()).owners
            if not owners.keys().isdisjoint(granted):
                raise ValueError(f"partitions of {topic.name!r} have two owners")
            owners.update((partition, (who, epoch)) for partition, epoch in granted.items())
            if granted:
                self._held[who][topic] = set(granted)

    def _restore_target(self, who: Who, topic: Topic, partitions: Collection[int]) -> None:
        table = self._tables.setdefault(topic, _Table())
        if self._current.setdefault(topic.name, topic) != topic or not table.targets.keys().isdisjoint(partitions):
            raise ValueError(f"partitions of {topic.name!r} have two targets")
        table.count = max(table.count, 1 + max(partitions))
        self._aim(who, topic, partitions)

    # state of the group

    @property
    def members(self) -> Mapping[Who, frozenset[str]]:
        """Members in the order of joining, with their topics."""
        return MappingProxyType(self._members)

    @property
    def outdated(self) -> bool:
        """Whether the group has changed since its target was computed."""
        return self.target_epoch < self.epoch

    def is_subscribed(self, name: str) -> bool:
        """Return whether a member is subscribed to a topic."""
        return self._subscribers[name] > 0

    def current(self, name: str) -> Topic | None:
        """Return the existing topic of a name."""
        return self._current.get(name)

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each existing, subscribed topic."""
        return {name: self._tables[topic].count for name, topic in self._current.items() if self._subscribers[name] > 0}

    def owners(self) -> dict[str, dict[int, Who]]:
        """Return owners of existing partitions, for an assignor."""
        return {
            name: {each: owner for each, (owner, _) in table.owners.items() if each < table.count}
            for name, table in self._existing()
            if table.owners
        }

    def targets(self) -> dict[str, dict[int, Who]]:
        """Return target members, for an assignor."""
        return {
            name: {each: who for each, who in table.targets.items() if each < table.count}
            for name, table in self._existing()
            if table.targets
        }

    def existing(self, parts: Mapping[Topic, set[int]]) -> dict[Topic, set[int]]:
        """Return the partitions of existing topics."""
        return {topic: each for topic, each in parts.items() if self._current.get(topic.name) == topic}

    def count(self, topic: Topic) -> int:
        """Return the number of partitions of an existing topic."""
        return self._tables[topic].count

    def shares_of(self, topic: Topic) -> tuple[dict[int, Who], dict[int, Who]]:
        """Return owners and targets of the partitions of a topic, which may no longer exist."""
        table = self._tables.get(topic)
        if table is None:
            return {}, {}
        return {each: owner for each, (owner, _) in table.owners.items()}, dict(table.targets)

    def granted(self, topic: str, partition: int) -> tuple[Who, int] | None:
        """Return the owner of a partition of an existing topic, and the epoch of the grant."""
        current = self._current.get(topic)
        return None if current is None else self._tables[current].owners.get(partition)

    # state of a member

    def held(self, who: Who) -> dict[Topic, set[int]]:
        """Return what a member owns."""
        return {topic: set(partitions) for topic, partitions in self._held[who].items()}

    def held_since(self, who: Who) -> dict[Topic, dict[int, int]]:
        """Return what a member owns, with the epochs of the grants."""
        return {
            topic: {partition: self._tables[topic].owners[partition][1] for partition in sorted(partitions)}
            for topic, partitions in self._held[who].items()
        }

    def target(self, who: Who) -> dict[Topic, set[int]]:
        """Return what a member should own."""
        return {topic: set(partitions) for topic, partitions in self._targets[who].items()}

    def is_settled(self, who: Who) -> bool:
        """Return whether a member owns exactly its target, as of the last `aim`."""
        return self._held[who] == self._targets[who]

    def due(self, who: Who) -> dict[Topic, set[int]]:
        """Return what a member should own and does not, of existing partitions."""
        found = {}
        for topic, partitions in _without(self._targets[who], self._held[who]).items():
            count = self._tables[topic].count if self._current.get(topic.name) == topic else 0
            rest = {each for each in partitions if each < count}
            if rest:
                found[topic] = rest
        return found

    def free_for(self, who: Who) -> dict[Topic, set[int]]:
        """Return the part of `due` that has no owner."""
        found = {}
        for topic, partitions in self.due(who).items():
            free = partitions.difference(self._tables[topic].owners)
            if free:
                found[topic] = free
        return found

    def to_give_up(self, who: Who) -> dict[Topic, set[int]]:
        """Return what a member owns and should not."""
        return _without(self._held[who], self._targets[who])

    # parts

    def _add(self, who: Who, topics: frozenset[str], before: frozenset[str]) -> None:
        self._members[who] = topics
        self._held.setdefault(who, {})
        self._targets.setdefault(who, {})
        self._subscribers.update(topics - before)
        self._subscribers.subtract(before - topics)

    def _aim(self, who: Who, topic: Topic, partitions: Collection[int]) -> None:
        self._targets[who].setdefault(topic, set()).update(partitions)
        self._tables[topic].targets.update(dict.fromkeys(partitions, who))

    def _free(self, topic: Topic, partitions: Iterable[int]) -> None:
        owners = self._tables[topic].owners
        for partition in partitions:
            del owners[partition]
        self._drop_unused(topic)

    def _drop_unused(self, topic: Topic) -> None:
        table = self._tables[topic]
        if self._current.get(topic.name) != topic and not (table.owners or table.targets):
            del self._tables[topic]

    def _existing(self) -> list[tuple[str, _Table[Who]]]:
        return [(name, self._tables[topic]) for name, topic in self._current.items()]


def _without(parts: Mapping[Topic, set[int]], others: Mapping[Topic, set[int]]) -> dict[Topic, set[int]]:
    found = {}
    for topic, partitions in parts.items():
        rest = partitions - others.get(topic, set())
        if rest:
            found[topic] = rest
    return found
