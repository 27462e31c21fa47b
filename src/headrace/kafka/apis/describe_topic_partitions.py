"""DescribeTopicPartitions (75), version 0 (KIP-966): topics in the order of their names, in pages.

Behavior
- No topics selects all that the client may describe. Topics are not created.
- A page has at most `response_partition_limit` partitions, and at most 2,000 (Kafka's default of
  `max.request.partition.size.limit`). `next_cursor` is the first partition of the next page.
- A cursor with a negative partition, or of a topic that the request does not name, is INVALID_REQUEST for each topic.
- Each topic has its authorized operations. There are no eligible leader replicas, as all replicas are in sync.
"""

from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.broker.topics.live import LiveTopic
from headrace.kafka.acl_codes import authorized
from headrace.kafka.denied import No, parts, topic_named
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, UnknownTopic
from headrace.topics.model import check_name

_NO_ID = UUID(int=0)
MOST_PARTITIONS = 2_000
"""Maximum partitions in one response."""
_PARTITION_BYTES = 400
"""Memory for one partition while the response is built and sent."""

Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
PartitionTold = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
Cursor = DescribeTopicPartitionsResponse.Cursor


def _no(asked: DescribeTopicPartitionsRequest.TopicRequest, no: No, _: RequestContext) -> Topic:
    return Topic(error_code=no.code, name=asked.name, partitions=[])


@register(
    DescribeTopicPartitionsRequest,
    0,
    0,
    needs=(topics(Operation.DESCRIBE, each_topic),),
    refusal=parts("topics", topic_named, _no, "topics"),
)
async def handle(request: DescribeTopicPartitionsRequest, context: RequestContext) -> DescribeTopicPartitionsResponse:
    """Describe a page of partitions."""
    cursor = request.cursor
    named = {topic.name for topic in request.topics}
    if cursor is not None:
        # The cursor's topic may have been removed from the request because the client has no right to it.
        strange = bool(named) and cursor.topic_name not in named and not context.taken_out
        if cursor.partition_index < 0 or strange:
            wrong = [Topic(error_code=Code.INVALID_REQUEST, name=name, partitions=[]) for name in sorted(named)]
            return DescribeTopicPartitionsResponse(topics=wrong)
    await context.turn()
    pace = context.pace()
    first, begin = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    left = max(1, min(request.response_partition_limit, MOST_PARTITIONS))
    await context.reserve(min(left, _partitions(context, named)) * _PARTITION_BYTES)
    response = DescribeTopicPartitionsResponse(topics=[])
    may_describe = _describable(context)
    every = (live.topic.name for live in context.broker.topics.with_internal())
    async for name in pace.each(sorted(named) if named else every):
        # Hidden topics appear in no page, and not as a cursor.
        if name < first or not (named or may_describe(name)):
            continue
        if not left:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        try:
            live = context.broker.topics.get(name)
        except UnknownTopic as error:
            response.topics.append(_missing(name, error))
            continue
        start = begin if name == first else 0
        end = min(start + left, len(live.partitions))
        response.topics.append(await _described(live, range(start, end), context, pace))
        left -= max(0, end - start)
        if end < len(live.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
    return response


def _partitions(context: RequestContext, named: Iterable[str]) -> int:
    topics = context.broker.topics
    found = (topics.find(name, _NO_ID) for name in named) if named else topics.with_internal()
    return sum(len(live.partitions) for live in found if live is not None)


def _describable(context: RequestContext) -> Callable[[str], bool]:
    broker = context.broker
    grants = broker.access.grants(context.principal, context.channel.client_host, broker.cluster)
    if grants is None:
        return lambda _: True
    return partial(grants.may, Operation.DESCRIBE, ResourceType.TOPIC)


def _missing(name: str, error: UnknownTopic) -> Topic:
    try:
        check_name(name)
    except TopicError as invalid:
        return Topic(error_code=code_of(invalid), name=name, partitions=[])
    return Topic(error_code=code_of(error), name=name, partitions=[])


async def _described(live: LiveTopic, indexes: Iterable[int], context: RequestContext, pace: TimeSlice) -> Topic:
    name = live.topic.name
    return Topic(
        name=name,
        topic_id=live.topic.id,
        is_internal=live.internal,
        partitions=[_partition(context, live, index) async for index in pace.each(indexes)],
        topic_authorized_operations=authorized(context, ResourceType.TOPIC, name),
    )


def _partition(context: RequestContext, live: LiveTopic, index: int) -> PartitionTold:
    epoch, leader = live.partitions[index].named
    copies = live.replicas(context.broker.ownership, index)
    return PartitionTold(
        error_code=Code.NONE if copies else Code.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=epoch,
        replica_nodes=copies,
        isr_nodes=copies,
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=[],
    )
