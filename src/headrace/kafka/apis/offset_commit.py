"""OffsetCommit (8), versions 2-8.

Behavior
- Partitions that do not exist get their own error; the others are committed together, durable before the answer; more
  than 500 in several steps.

Version notes
- 2-4: a retention time per request, ignored as since Kafka 2.1. 6: leader epochs. 7: static members. 8: flexible.
"""

from collections.abc import Iterator

from headrace.access.needs import Operation
from headrace.groups.effects import CommitResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit
from headrace.groups.model import Position, TopicPartition
from headrace.kafka.codec.messages import OffsetCommitRequest, OffsetCommitResponse
from headrace.kafka.errors import code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import each_topic, groups, its_group, topics
from headrace.kafka.refusing import No, group_and_topic, parts
from headrace.kafka.registry import register
from headrace.topics.errors import UnknownTopic

_AT_ONCE = 500
"""Positions that are committed in one step: more would hold up other groups."""

Topic = OffsetCommitResponse.OffsetCommitResponseTopic
Partition = OffsetCommitResponse.OffsetCommitResponsePartition


def _no(topic: OffsetCommitRequest.OffsetCommitRequestTopic, no: No, _: Exchange) -> Topic:
    refused = [Partition(partition_index=asked.partition_index, error_code=no.code) for asked in topic.partitions]
    return Topic(name=topic.name, partitions=refused)


@register(
    OffsetCommitRequest,
    2,
    8,
    needs=(groups(Operation.READ, its_group), topics(Operation.READ, each_topic)),
    refusal=parts("topics", group_and_topic, _no, "topics"),
)
async def handle(request: OffsetCommitRequest, exchange: Exchange) -> OffsetCommitResponse:
    """Commit positions of a group."""
    broker = exchange.broker
    positions: dict[TopicPartition, Position] = {}
    errors: dict[TopicPartition, GroupError | None] = {}
    pace = exchange.pace()
    async for topic in pace.each(request.topics):
        async for asked in pace.each(topic.partitions):
            partition = TopicPartition(topic.name, asked.partition_index)
            try:
                broker.topics.partition(topic.name, asked.partition_index)
            except UnknownTopic:
                errors[partition] = GroupError.UNKNOWN_TOPIC_OR_PARTITION
                continue
            positions[partition] = Position(
                offset=asked.committed_offset,
                leader_epoch=asked.committed_leader_epoch,
                metadata=asked.committed_metadata or "",
            )
    for number, some in enumerate(_groups_of(positions, _AT_ONCE)):
        result = await broker.groups.request(
            request.group_id,
            Commit(
                token=(exchange, number),
                generation=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                positions=some,
            ),
        )
        assert isinstance(result, CommitResult)
        errors.update(result.partitions)
        if pace.over:
            await pace.rest()
    return OffsetCommitResponse(
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


def _groups_of(positions: dict[TopicPartition, Position], size: int) -> Iterator[dict[TopicPartition, Position]]:
    """At least one, which is what a commit of nothing is."""
    items = list(positions.items())
    for start in range(0, max(1, len(items)), size):
        yield dict(items[start : start + size])
