"""OffsetDelete (47), version 0 (KIP-496).

Behavior
- Positions in topics that a member reads stay: GROUP_SUBSCRIBED_TO_TOPIC.
- Of a group that is not there: GROUP_ID_NOT_FOUND.
"""

from headrace.access.needs import Operation, ResourceType
from headrace.groups.effects import DeletePositionsResult
from headrace.groups.errors import GroupError
from headrace.groups.events import DeletePositions
from headrace.groups.model import TopicPartition
from headrace.kafka.codec.messages import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.kafka.errors import code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import each_topic, groups, its_group, topics
from headrace.kafka.refusing import No, Refused, Rest, Steps, parts, topic_named
from headrace.kafka.registry import register
from headrace.topics.errors import UnknownTopic

_AT_ONCE = 500
"""Positions that are deleted in one step: more would hold up other groups."""

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = OffsetDeleteResponse.OffsetDeleteResponsePartition


def _no(topic: OffsetDeleteRequest.OffsetDeleteRequestTopic, no: No, _: Exchange) -> Topic:
    refused = [Partition(partition_index=asked.partition_index, error_code=no.code) for asked in topic.partitions]
    return Topic(name=topic.name, partitions=refused)


_TOPICS = parts("topics", topic_named, _no, "topics")


def _take_out(request: OffsetDeleteRequest, exchange: Exchange, refused: Refused) -> Steps:
    no = refused.get((ResourceType.GROUP, request.group_id))
    if no is not None:
        return Rest(OffsetDeleteResponse(error_code=no.code, topics=[]))
    return (yield from _TOPICS(request, exchange, refused))


@register(
    OffsetDeleteRequest,
    0,
    0,
    needs=(groups(Operation.DELETE, its_group), topics(Operation.READ, each_topic)),
    refusal=_take_out,
)
async def handle(request: OffsetDeleteRequest, exchange: Exchange) -> OffsetDeleteResponse:
    """Delete positions of a group."""
    broker = exchange.broker
    refused = await broker.groups.ready(request.group_id)
    if refused is not None:
        return OffsetDeleteResponse(error_code=code_of(refused), topics=[])
    if not broker.groups.exists(request.group_id):
        return OffsetDeleteResponse(error_code=code_of(GroupError.GROUP_ID_NOT_FOUND), topics=[])
    errors: dict[TopicPartition, GroupError | None] = {}
    known: dict[TopicPartition, None] = {}
    pace = exchange.pace()
    async for topic in pace.each(request.topics):
        async for asked in pace.each(topic.partitions):
            place = TopicPartition(topic.name, asked.partition_index)
            try:
                broker.topics.partition(topic.name, asked.partition_index)
            except UnknownTopic:
                errors[place] = GroupError.UNKNOWN_TOPIC_OR_PARTITION
            else:
                known[place] = None
    places = list(known)
    for start in range(0, max(1, len(places)), _AT_ONCE):
        some = tuple(places[start : start + _AT_ONCE])
        result = await broker.groups.request(
            request.group_id, DeletePositions(token=(exchange, start), partitions=some)
        )
        assert isinstance(result, DeletePositionsResult)
        if result.error is not None:
            return OffsetDeleteResponse(error_code=code_of(result.error), topics=[])
        errors.update(result.partitions)
        if pace.over:
            await pace.rest()
    exchange.changed(f"positions of group {request.group_id} deleted: {len(places)} partitions")
    return OffsetDeleteResponse(
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    Partition(
                        partition_index=asked.partition_index,
                        error_code=code_of(errors[TopicPartition(topic.name, asked.partition_index)]),
                    )
                    async for asked in pace.each(topic.partitions)
                ],
            )
            async for topic in pace.each(request.topics)
        ]
    )
