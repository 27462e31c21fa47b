"""Topics of a virtual cluster by name or id."""

from collections.abc import Iterator
from uuid import UUID

from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic, not_for_clients
from headrace.topics.errors import InvalidTopicName, TooManyPartitions, TopicExists, UnknownTopic, UnknownTopicId
from headrace.topics.model import MAX_LENGTH, check_name, is_reserved, may_collide, metric_name


def check_room(present: int, added: int, most: int) -> None:
    """Raise TooManyPartitions if more partitions would exceed the limit."""
    if present + added > most:
        raise TooManyPartitions(
            f"{added} more partitions would exceed max.broker.partitions={most}: there are {present} already"
        )


class KnownTopics:
    """All existing topics."""

    def __init__(self) -> None:
        self._by_name: dict[str, LiveTopic] = {}
        self._by_id: dict[bytes, LiveTopic] = {}
        """By the bytes of the id, as they are in requests."""
        self._by_metric: dict[str, set[str]] = {}
        """`metric_name` of names that may collide -> these names."""
        self.internal: dict[str, LiveTopic] = {}
        """Internal topics, which are never stored: found by name or id, and in `with_internal`."""

    def __iter__(self) -> Iterator[LiveTopic]:
        return iter(list(self._by_name.values()))

    def in_order(self) -> Iterator[LiveTopic]:
        """Yield topics by name. Topics deleted in the meantime are skipped."""
        return (live for name in self.names() if (live := self._by_name.get(name)) is not None)

    def with_internal(self) -> Iterator[LiveTopic]:
        """As `in_order`, with internal topics."""
        names = sorted({*self._by_name, *self.internal})
        return (live for name in names if (live := self._named(name)) is not None)

    def _named(self, name: str) -> LiveTopic | None:
        return self._by_name.get(name) or self.internal.get(name)

    def find(self, name: str | None, topic_id: UUID) -> LiveTopic | None:
        """Return a topic by name, or by id if the name is None."""
        if name is not None:
            return self._named(name)
        return self.with_id(topic_id.bytes)

    def with_id(self, topic_id: bytes) -> LiveTopic | None:
        """Return the topic whose id has these bytes."""
        found = self._by_id.get(topic_id)
        return found or next((live for live in self.internal.values() if live.topic.id.bytes == topic_id), None)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._by_name)

    def has(self, name: str) -> bool:
        """Whether a topic of this name exists."""
        return name in self._by_name or name in self.internal

    def is_stored(self, live: LiveTopic) -> bool:
        """Whether the partitions have streams in Redis, unlike those of an internal topic."""
        return self.internal.get(live.topic.name) is not live

    def get(self, name: str) -> LiveTopic:
        """Return a topic. Raises UnknownTopic, or UnreadableTopic for an unreadable registry entry."""
        live = self._named(name)
        if live is None:
            raise self._missing(name)
        return live

    def _missing(self, name: str) -> UnknownTopic:
        # An invalid name may be very long, and requested for thousands of partitions.
        return UnknownTopic(f"no topic {name[:MAX_LENGTH]!r}")

    def changeable(self, name: str) -> LiveTopic:
        """As `get`. Raises UnknownTopic, or InvalidTopicName for an internal one."""
        live = self.get(name)
        if name not in self._by_name:
            raise not_for_clients(name)
        return live

    def by_id(self, topic_id: UUID) -> LiveTopic:
        """Return a topic. Raises UnknownTopicId."""
        live = self.with_id(topic_id.bytes)
        if live is None:
            raise UnknownTopicId(f"no topic with id {topic_id}")
        return live

    def find_referred(self, topic: str | UUID) -> LiveTopic | None:
        """Return a topic by name or id, if it exists."""
        return self._named(topic) if isinstance(topic, str) else self.with_id(topic.bytes)

    def referred(self, topic: str | UUID) -> LiveTopic:
        """Return a topic by name or id. Raises UnknownTopic, or UnreadableTopic as `get`."""
        return self.get(topic) if isinstance(topic, str) else self.by_id(topic)

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition. Raises UnknownTopic."""
        return self.get(name).partition(index)

    def check_free(self, name: str, *, distinct: bool = True) -> None:
        """Raise InvalidTopicName or TopicExists unless a new topic may have this name.

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
        self._by_id[live.topic.id.bytes] = live
        if may_collide(name):
            self._by_metric.setdefault(metric_name(name), set()).add(name)

    def _strike(self, live: LiveTopic) -> None:
        name = live.topic.name
        del self._by_name[name]
        del self._by_id[live.topic.id.bytes]
        if may_collide(name):
            others = self._by_metric[metric_name(name)]
            others.discard(name)
            if not others:
                del self._by_metric[metric_name(name)]
