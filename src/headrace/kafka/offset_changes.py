"""Changing positions of a group: what OffsetCommit and OffsetDelete do alike. Each partition gets its own error."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from uuid import UUID

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.groups.errors import GroupError
from headrace.groups.model import TopicPartition
from headrace.kafka.denied import No
from headrace.kafka.errors import code_of
from headrace.kafka.server.request_context import RequestContext
from headrace.topics.errors import UnknownTopic

_AT_ONCE = 500
"""Positions that are changed in one step: more would hold up other groups."""

Errors = dict[TopicPartition, GroupError | None]
Topic = TypeVar("Topic")


async def find_partitions(
    topics: Iterable[Any], context: RequestContext, pace: TimeSlice
) -> tuple[dict[TopicPartition, Any], Errors, dict[str, UUID]]:
    """The partitions that a request names, each with what it asks of it; errors for those that are not there.

    And the ids of the topics when they were looked up first: they may be others when this returns.
    """
    found: dict[TopicPartition, Any] = {}
    errors: Errors = {}
    ids: dict[str, UUID] = {}
    async for topic in pace.each(topics):
        async for asked in pace.each(topic.partitions):
            place = TopicPartition(topic.name, asked.partition_index)
            try:
                live = context.broker.topics.get(topic.name)
                live.partition(asked.partition_index)
            except UnknownTopic:
                errors[place] = GroupError.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found[place] = asked
                ids.setdefault(topic.name, live.topic.id)
    return found, errors, ids


def in_steps(found: Mapping[TopicPartition, Any]) -> Iterator[dict[TopicPartition, Any]]:
    """The partitions in pieces that are changed in one step each; one piece where there is nothing to change."""
    items = list(found.items())
    for start in range(0, max(1, len(items)), _AT_ONCE):
        yield dict(items[start : start + _AT_ONCE])


class Answers(Generic[Topic]):
    """How an API answers for topics: with a code for each partition."""

    def __init__(self, topic: Callable[..., Topic], partition: Callable[..., Any]) -> None:
        """In these structures of the API's response."""
        self._topic = topic
        self._partition = partition

    def refused(self, topic: Any, no: No, _: RequestContext) -> Topic:
        """For a topic that whoever asks may not have."""
        refused = [
            self._partition(partition_index=asked.partition_index, error_code=no.code) for asked in topic.partitions
        ]
        return self._topic(name=topic.name, partitions=refused)

    async def made(self, topics: Iterable[Any], errors: Errors, pace: TimeSlice) -> list[Topic]:
        """For the topics of a request, with these errors."""
        return [
            self._topic(
                name=topic.name,
                partitions=[
                    self._partition(
                        partition_index=asked.partition_index,
                        error_code=code_of(errors[TopicPartition(topic.name, asked.partition_index)]),
                    )
                    async for asked in pace.each(topic.partitions)
                ],
            )
            async for topic in pace.each(topics)
        ]
