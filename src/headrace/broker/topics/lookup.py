"""The topics that a virtual cluster has: found by name or id. Look-ups are plain dictionary reads."""

from collections.abc import Iterator
from uuid import UUID

from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic
from headrace.topics.errors import UnknownTopic
from headrace.topics.names import MAX_LENGTH


class KnownTopics:
    """Every topic that there is now."""

    def __init__(self) -> None:
        """There is none."""
        self._by_name: dict[str, LiveTopic] = {}
        self._by_id: dict[UUID, LiveTopic] = {}

    def __iter__(self) -> Iterator[LiveTopic]:
        return iter(list(self._by_name.values()))

    def in_order(self) -> Iterator[LiveTopic]:
        """All topics that there are now and still when their turn comes, by name."""
        return (live for name in self.names() if (live := self._by_name.get(name)) is not None)

    def find(self, name: str | None, topic_id: UUID) -> LiveTopic | None:
        """A topic by its name or, where that is None, by its id; None: there is none."""
        return self._by_id.get(topic_id) if name is None else self._by_name.get(name)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    def has(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return name in self._by_name

    def get(self, name: str) -> LiveTopic:
        """Raises UnknownTopic."""
        try:
            return self._by_name[name]
        except KeyError:
            # A name that cannot be a topic's may be of any length, and named for thousands of partitions.
            raise UnknownTopic(f"no topic {name[:MAX_LENGTH]!r}") from None

    def by_id(self, topic_id: UUID) -> LiveTopic:
        """Raises UnknownTopic."""
        try:
            return self._by_id[topic_id]
        except KeyError:
            raise UnknownTopic(f"no topic with id {topic_id}") from None

    def partition(self, name: str, index: int) -> Partition:
        """Raises UnknownTopic, also when the topic has no such partition."""
        return self.get(name).partition(index)

    def _enter(self, live: LiveTopic) -> None:
        self._by_name[live.topic.name] = live
        self._by_id[live.topic.id] = live

    def _strike(self, live: LiveTopic) -> None:
        del self._by_name[live.topic.name]
        del self._by_id[live.topic.id]
