"""The topics that a virtual cluster has: found by name or id. Look-ups are plain dictionary reads."""

from collections.abc import Iterator
from uuid import UUID

from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic, not_for_clients
from headrace.topics.errors import InvalidTopicName, TooManyPartitions, TopicExists, UnknownTopic
from headrace.topics.model import MAX_LENGTH, check_name, is_reserved, may_collide, metric_name


def check_room(present: int, added: int, most: int) -> None:
    """Raise TooManyPartitions where a server with so many partitions may not have so many more."""
    if present + added > most:
        raise TooManyPartitions(
            f"{added} more partitions would exceed max.broker.partitions={most}: there are {present} already"
        )


class KnownTopics:
    """Every topic that there is now."""

    def __init__(self) -> None:
        """There is none."""
        self._by_name: dict[str, LiveTopic] = {}
        self._by_id: dict[UUID, LiveTopic] = {}
        self._by_metric: dict[str, set[str]] = {}
        """What `metric_name` makes of names that may collide -> these names."""
        self.internal: dict[str, LiveTopic] = {}
        """Those that nobody has created and that are never stored: found by name or id, and in `with_internal`."""

    def __iter__(self) -> Iterator[LiveTopic]:
        return iter(list(self._by_name.values()))

    def in_order(self) -> Iterator[LiveTopic]:
        """All topics that there are now and still when their turn comes, by name."""
        return (live for name in self.names() if (live := self._by_name.get(name)) is not None)

    def with_internal(self) -> Iterator[LiveTopic]:
        """As `in_order`, with those that nobody has created."""
        names = sorted({*self._by_name, *self.internal})
        return (live for name in names if (live := self._named(name)) is not None)

    def _named(self, name: str) -> LiveTopic | None:
        return self._by_name.get(name) or self.internal.get(name)

    def find(self, name: str | None, topic_id: UUID) -> LiveTopic | None:
        """A topic by its name or, where that is None, by its id; None: there is none."""
        if name is not None:
            return self._named(name)
        found = self._by_id.get(topic_id)
        return found or next((live for live in self.internal.values() if live.topic.id == topic_id), None)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    def has(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return name in self._by_name or name in self.internal

    def is_stored(self, live: LiveTopic) -> bool:
        """Whether the topic's partitions have streams in Redis. An internal topic has none."""
        return self.internal.get(live.topic.name) is not live

    def get(self, name: str) -> LiveTopic:
        """Raises UnknownTopic; UnreadableTopic where the registry has an entry of that name that cannot be read."""
        live = self._named(name)
        if live is None:
            raise self._missing(name)
        return live

    def _missing(self, name: str) -> UnknownTopic:
        """Why there is no topic of a name."""
        # A name that cannot be a topic's may be of any length, and named for thousands of partitions.
        return UnknownTopic(f"no topic {name[:MAX_LENGTH]!r}")

    def changeable(self, name: str) -> LiveTopic:
        """A topic that clients may change. Raises UnknownTopic; InvalidTopicName for one that nobody has created."""
        live = self.get(name)
        if name not in self._by_name:
            raise not_for_clients(name)
        return live

    def by_id(self, topic_id: UUID) -> LiveTopic:
        """Raises UnknownTopic."""
        live = self.find(None, topic_id)
        if live is None:
            raise UnknownTopic(f"no topic with id {topic_id}")
        return live

    def partition(self, name: str, index: int) -> Partition:
        """Raises UnknownTopic, also when the topic has no such partition."""
        return self.get(name).partition(index)

    def check_free(self, name: str, *, distinct: bool = True) -> None:
        """Raise InvalidTopicName or TopicExists unless a topic may get this name.

        `distinct`: whether it must differ from others in more than `.` and `_`, as in Kafka.
        """
        check_name(name)
        if self.has(name):
            raise TopicExists(f"topic {name!r} exists already")
        if is_reserved(name):
            raise InvalidTopicName(f"topic name {name!r} is reserved: it is an internal topic of Kafka")
        if distinct and may_collide(name):
            metric = metric_name(name)
            internal = (each for each in self.internal if metric_name(each) == metric)
            others = {*self._by_metric.get(metric, ()), *internal}
            if others:
                raise InvalidTopicName(f"Topic '{name}' collides with existing topic: {min(others)}")

    def _enter(self, live: LiveTopic) -> None:
        name = live.topic.name
        self._by_name[name] = live
        self._by_id[live.topic.id] = live
        if may_collide(name):
            self._by_metric.setdefault(metric_name(name), set()).add(name)

    def _strike(self, live: LiveTopic) -> None:
        name = live.topic.name
        del self._by_name[name]
        del self._by_id[live.topic.id]
        if may_collide(name):
            others = self._by_metric[metric_name(name)]
            others.discard(name)
            if not others:
                del self._by_metric[metric_name(name)]
