"""Which groups this server coordinates, and what has to be known to take one over."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec

from headrace.broker.ownership import Ownership
from headrace.groups.events import Commit, DropTopic
from headrace.groups.model import StoredGroup


class Coordination:
    """The groups of one virtual cluster."""

    def __init__(
        self,
        ownership: Ownership,
        cluster: str,
        topic_id: Callable[[str], UUID | None],
        stored_topic_id: Callable[[str], Awaitable[UUID | None]],
    ) -> None:
        """Begin.

        Args:
            ownership: what is this server's.
            cluster: the virtual cluster's name.
            topic_id: tells the id of the topic of a name, as far as this server knows of one.
            stored_topic_id: asks storage for it.
        """
        self._ownership = ownership
        self._cluster = cluster
        self._topic_id = topic_id
        self._stored_topic_id = stored_topic_id

    @property
    def shared(self) -> bool:
        """Whether there may be other brokers."""
        return self._ownership.shared

    @property
    def number(self) -> int | None:
        """The number of the view; None: this server is alone."""
        return self._ownership.number

    @property
    def unbroken(self) -> bool:
        """Whether there was no view between this one and the one that this server went by before it."""
        return self._ownership.unbroken

    def owns(self, group: str) -> bool:
        """Whether this server coordinates a group."""
        return self._ownership.owns(self._ownership.group_key(self._cluster, group))

    @property
    def certain(self) -> bool:
        """Whether nobody can have taken its groups over by now."""
        return self._ownership.certain()

    def stamped(self, commit: Commit) -> Commit:
        """A commit whose positions say of which topic they are: a later one may get its name."""
        ids = {name: self._topic_id(name) for name in {place.topic for place in commit.positions}}
        positions = {
            place: msgspec.structs.replace(position, topic_id=ids[place.topic])
            for place, position in commit.positions.items()
        }
        return msgspec.structs.replace(commit, positions=positions)

    def outlived(self, group: StoredGroup) -> list[DropTopic]:
        """What a stored group has of earlier topics, whose names others have by now, as this server knows them."""
        drops = []
        for name, ids in sorted(_topics_of(group).items()):
            present = self._topic_id(name)
            if present is not None:
                drops += [DropTopic(name, each) for each in sorted(ids - {present})]
        return drops

    async def gone(self, group: StoredGroup) -> list[DropTopic]:
        """What a stored group has of topics that are not there, as storage knows them. Raises StorageUnavailable."""
        drops = []
        for name, ids in sorted(_topics_of(group).items()):
            present = self._topic_id(name)
            if present is None or ids - {present}:
                # It may have been made, or made again, a moment ago.
                present = await self._stored_topic_id(name)
            drops += (
                [DropTopic(name)] if present is None else [DropTopic(name, each) for each in sorted(ids - {present})]
            )
        return drops


def _topics_of(group: StoredGroup) -> dict[str, set[UUID]]:
    """The names of the topics in which a group has something, and the ids that it says with them."""
    found: dict[str, set[UUID]] = {}
    said = [(place.topic, position.topic_id) for place, position in group.positions.items()]
    for name, topic_id in [*said, *((section.topic, section.topic_id) for section in group.balanced)]:
        ids = found.setdefault(name, set())
        if topic_id is not None:
            ids.add(topic_id)
    return found
