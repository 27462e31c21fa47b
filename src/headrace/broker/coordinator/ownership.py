"""Which groups this server coordinates, and what has to be known to take one over."""

from collections.abc import Awaitable, Callable, Container
from uuid import UUID

import msgspec

from headrace.broker.brokers.ownership import Ownership
from headrace.groups.errors import GroupError
from headrace.groups.events import NO_ID, Commit, DropTopic
from headrace.groups.model import StoredGroup, TopicPartition


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

    def still_there(self, commit: Commit) -> tuple[Commit, dict[TopicPartition, GroupError | None]]:
        """What a commit has of topics that are there, and errors for the rest: deleted, or made again, meanwhile."""
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
        """Whether there is a topic of this name, as far as this server knows."""
        return self._topic_id(name) is not None

    def has_again(self, drop: DropTopic) -> bool:
        """Whether the topic itself is back: it had moved to another virtual cluster, and keeps its id."""
        return drop.topic_id is not None and drop.topic_id == self._topic_id(drop.topic)

    def outlived(self, group: StoredGroup, absent: Container[str]) -> list[DropTopic]:
        """What a stored group has of topics that are not there, as this server knows them.

        Args:
            group: the group.
            absent: names that no topic has; others may have those of earlier topics.
        """
        drops = []
        for name, ids in sorted(_topics_of(group).items()):
            present = self._topic_id(name)
            if name in absent or present is not None:
                drops += _drops(name, ids, None if name in absent else present)
        return drops

    async def gone(self, group: StoredGroup) -> list[DropTopic]:
        """What a stored group has of topics that are not there, as storage knows them. Raises StorageUnavailable."""
        drops = []
        for name, ids in sorted(_topics_of(group).items()):
            present = self._topic_id(name)
            if present is None or ids - {present, NO_ID}:
                # It may have been made, or made again, a moment ago.
                present = await self._stored_topic_id(name)
            drops += _drops(name, ids, present)
        return drops


def of_one_server() -> Coordination:
    """Every group is this server's, and every topic is there, with one id."""
    return Coordination(Ownership(0), "default", lambda _: UUID(int=1 << 127), _no_stored_id)


async def _no_stored_id(_: str) -> UUID | None:
    return None


def _drops(name: str, ids: set[UUID], present: UUID | None) -> list[DropTopic]:
    """Of those ids only: the name may get a topic before storage takes it, and have positions of that one."""
    gone = ids if present is None else ids - {present, NO_ID}
    return [DropTopic(name, each, strict=True) for each in sorted(gone)]


def _topics_of(group: StoredGroup) -> dict[str, set[UUID]]:
    """The names of the topics in which a group has something, and the ids that it says with them: NO_ID for none."""
    found: dict[str, set[UUID]] = {}
    said = [(place.topic, position.topic_id) for place, position in group.positions.items()]
    for name, topic_id in [*said, *((section.topic, section.topic_id) for section in group.balanced)]:
        found.setdefault(name, set()).add(topic_id or NO_ID)
    return found
