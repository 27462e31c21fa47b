"""Ownership of groups, and checks of their topics."""

from collections.abc import Awaitable, Callable, Container
from typing import TypeVar
from uuid import UUID

import msgspec

from headrace.broker.brokers.ownership import KeyedOwnership, Ownership
from headrace.groups.errors import GroupError
from headrace.groups.events import NO_ID, Commit, DropTopic, TxnOffsetCommit
from headrace.groups.model import StoredGroup, TopicPartition
from headrace.groups.sharing.model import StoredShareTopic

C = TypeVar("C", Commit, TxnOffsetCommit)


class Coordination(KeyedOwnership):
    """The groups of one virtual cluster."""

    def __init__(
        self,
        ownership: Ownership,
        cluster: str,
        topic_id: Callable[[str], UUID | None],
        stored_topic_id: Callable[[str], Awaitable[UUID | None]],
    ) -> None:
        super().__init__(ownership, lambda group: ownership.group_key(cluster, group))
        self._topic_id = topic_id
        self._stored_topic_id = stored_topic_id

    def stamped(self, commit: C) -> C:
        """Return the commit with topic ids, because a later topic may reuse a name."""
        ids = {
            place.topic: self._topic_id(place.topic) for place, each in commit.positions.items() if not each.topic_id
        }
        if not ids:
            return commit
        positions = {
            place: each if each.topic_id else msgspec.structs.replace(each, topic_id=ids[place.topic])
            for place, each in commit.positions.items()
        }
        return msgspec.structs.replace(commit, positions=positions)

    def still_there(self, commit: C) -> tuple[C, dict[TopicPartition, GroupError | None]]:
        """Split a commit into offsets of existing topics, and errors for deleted or recreated ones."""
        said = {(place.topic, position.topic_id) for place, position in commit.positions.items()}
        gone = {name for name, each in said if each is None or each != self._topic_id(name)}
        if not gone:
            return commit, {}
        positions = {place: position for place, position in commit.positions.items() if place.topic not in gone}
        refused: dict[TopicPartition, GroupError | None] = {
            place: GroupError.UNKNOWN_TOPIC_OR_PARTITION for place in commit.positions if place.topic in gone
        }
        return msgspec.structs.replace(commit, positions=positions), refused

    def has(self, name: str) -> bool:
        """Whether this server knows a topic."""
        return self._topic_id(name) is not None

    def has_again(self, drop: DropTopic) -> bool:
        """Whether the topic exists again with the same id, after a move between virtual clusters."""
        return drop.topic_id is not None and drop.topic_id == self._topic_id(drop.topic)

    def outlived(self, group: StoredGroup, absent: Container[str]) -> list[DropTopic]:
        """Return the parts of a stored group whose topics are missing here.

        `absent`: names without a topic. Others may belong to newer topics.
        """
        drops = []
        for name, ids in sorted(topics_of(group).items()):
            present = self._topic_id(name)
            if name in absent or present is not None:
                drops += _drops(name, ids, None if name in absent else present)
        return drops

    async def gone(self, group: StoredGroup) -> list[DropTopic]:
        """Return the parts whose topics are missing in storage. Raises StorageUnavailable."""
        drops = []
        for name, ids in sorted(topics_of(group).items()):
            present = self._topic_id(name)
            if present is None or ids - {present, NO_ID}:
                # The topic may have been created just now.
                present = await self._stored_topic_id(name)
            drops += _drops(name, ids, present)
        return drops


def of_one_server() -> Coordination:
    """Return the ownership of a single server: all groups are local, all topics exist."""
    return Coordination(Ownership(0), "default", lambda _: UUID(int=1 << 127), _no_stored_id)


async def _no_stored_id(_: str) -> UUID | None:
    return None


def _drops(name: str, ids: set[UUID], present: UUID | None) -> list[DropTopic]:
    gone = ids if present is None else ids - {present, NO_ID}
    return [DropTopic(name, each, strict=True) for each in sorted(gone)]


def topics_of(group: StoredGroup) -> dict[str, set[UUID]]:
    """Return the IDs of the topics with offsets or states in a group, by name. `NO_ID`: an older server stored none."""
    found: dict[str, set[UUID]] = {}
    said = [(place.topic, position.topic_id) for place, position in group.positions.items()]
    said += [(key.partition.topic, each.position.topic_id) for key, each in group.pending.items()]
    said += [(each.topic, each.topic_id) for each in group.fields if isinstance(each, StoredShareTopic)]
    for name, topic_id in [*said, *((section.topic, section.topic_id) for section in group.balanced)]:
        found.setdefault(name, set()).add(topic_id or NO_ID)
    return found
