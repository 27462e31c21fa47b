"""OffsetForLeaderEpoch (23), versions 2-4 (KIP-320).

Behavior
- Returns the largest known leader epoch that is not after the requested one, and its end offset. That is the first
  offset of the next epoch, or the log end offset. If none is known, epoch and offset are -1. The epoch rises whenever a
  server becomes leader.
- As in Kafka, an epoch whose records have all been trimmed ends where the oldest known one begins. A consumer that has
  read it continues there.

Version notes
- 3: replica id. 4: flexible.
"""

from collections.abc import Iterator
from typing import Any

from headrace.broker.partition.partition import Partition as Asked
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, check_epoch
from headrace.kafka.required_acls import topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError

EpochAsked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
Partition = OffsetForLeaderEpochResponse.EpochEndOffset


def _places(topic: Any, _: OffsetForLeaderEpochRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TOPIC, topic.topic


def _no(asked: EpochAsked, code: Code, _: str | None) -> Partition:
    return Partition(partition=asked.partition, error_code=code)


def _topic(topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic, partitions: list[Partition]) -> Topic:
    return Topic(topic=topic.topic, partitions=partitions)


@register(
    OffsetForLeaderEpochRequest,
    2,
    4,
    needs=(
        topics(
            Operation.DESCRIBE,
            lambda request, _: (topic.topic for topic in request.topics),
            instead=(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
        ),
    ),
    each=Each("topics", "topics", _no, _places, _topic),
    bound=OF_LOGS,
)
def handle(_: OffsetForLeaderEpochRequest, context: RequestContext) -> AnswerItem:
    """Return the end offsets of leader epochs."""
    topics, ends = context.broker.topics, Ends()

    async def end_of(topic: OffsetForLeaderEpochRequest.OffsetForLeaderTopic, asked: EpochAsked) -> Partition:
        partition = topics.partition(topic.topic, asked.partition)
        partition.check_led()
        check_epoch(partition.leader_epoch, asked.current_leader_epoch)
        # The end must be current: a client that is ahead of it reads again from there.
        await ends.ask(partition)
        epoch, end = partition.end_of_epoch(asked.leader_epoch)
        return Partition(partition=asked.partition, leader_epoch=epoch, end_offset=end)

    return end_of


class Ends:
    """The log ends of a request's partitions, each read from storage once."""

    def __init__(self) -> None:
        self.asked: dict[Asked, TopicError | None] = {}
        """The error of each, or None."""

    async def ask(self, partition: Asked) -> None:
        """Bring a partition's log end up to date. Raises TopicError."""
        if partition not in self.asked:
            self.asked[partition] = None
            try:
                await partition.ask_end()
            except TopicError as error:
                self.asked[partition] = error
        refused = self.asked[partition]
        if refused is not None:
            # A new exception each time, because exceptions keep their tracebacks.
            raise type(refused)(str(refused))
