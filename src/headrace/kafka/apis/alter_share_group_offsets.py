"""AlterShareGroupOffsets (91), version 0: set the start offsets of a share group (KIP-932).

Behavior
- The group must have no members. A group that does not exist is created.
- If storage refuses an offset, the response has an error, but the next member may begin at the offset.
- If a leader still serves the group, storage refuses its next write, and it loads the new offset.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.groups.model import TopicFacts
from headrace.groups.sharing.events import AlterShareOffsets, ShareOffsetsResult
from headrace.kafka.denied import No, Place, parts
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, its_group, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, cut

Response = AlterShareGroupOffsetsResponse
Topic = Response.AlterShareGroupOffsetsResponseTopic
Part = Response.AlterShareGroupOffsetsResponsePartition
_UNKNOWN = "This server does not host this topic-partition."


def _names(request: AlterShareGroupOffsetsRequest, _: RequestContext) -> Iterable[str]:
    return (topic.topic_name for topic in request.topics)


def places(topic: Any, request: Any, _: RequestContext) -> Iterator[Place]:
    """Yield the group of a request and one of its topics."""
    yield ResourceType.GROUP, request.group_id
    yield ResourceType.TOPIC, topic.topic_name


def _no(topic: Any, no: No, _: RequestContext) -> Topic:
    refused = [
        Part(partition_index=each.partition_index, error_code=no.code, error_message=no.message)
        for each in topic.partitions
    ]
    return Topic(topic_name=topic.topic_name, partitions=refused)


@register(
    AlterShareGroupOffsetsRequest,
    0,
    0,
    needs=(groups(Operation.READ, its_group), topics(Operation.READ, _names)),
    refusal=parts("topics", places, _no, "responses"),
    element_bytes=4,
    bound=OF_CHANGES,
)
async def handle(request: AlterShareGroupOffsetsRequest, context: RequestContext) -> Response:
    """Alter offsets of a share group."""
    topics_of = context.broker.topics
    offsets: dict[tuple[str, int], int] = {}
    facts: dict[str, TopicFacts] = {}
    async for topic in context.pace().each(request.topics):
        live = topics_of.find_referred(topic.topic_name)
        if live is None:
            continue
        facts[topic.topic_name] = TopicFacts(live.topic.id, len(live.partitions))
        for each in topic.partitions:
            if 0 <= each.partition_index < len(live.partitions) and each.start_offset >= 0:
                offsets[topic.topic_name, each.partition_index] = each.start_offset
    altered: dict[str, dict[int, int]] = {}
    for (name, index), offset in offsets.items():
        altered.setdefault(name, {})[index] = offset
    result = await context.ask_group(
        request.group_id, AlterShareOffsets(token=context, partitions=altered, facts=facts)
    )
    assert isinstance(result, ShareOffsetsResult)
    if result.error is not None:
        return Response(error_code=code_of(result.error), error_message=result.message or None)
    try:
        await context.broker.shares.begin(request.group_id, result.states, altered=True)
    except TopicError as error:
        return Response(error_code=code_of(error), error_message=cut(str(error)))
    if offsets:
        context.changed(f"offsets of share group {request.group_id} altered")
    return Response(
        responses=[_answer(topic, facts.get(topic.topic_name), offsets) for topic in request.topics],
    )


def _answer(topic: Any, known: TopicFacts | None, offsets: dict[tuple[str, int], int]) -> Topic:
    answer = Topic(topic_name=topic.topic_name)
    if known is not None:
        answer.topic_id = known.topic_id
    answer.partitions = [
        Part(partition_index=each.partition_index)
        if (topic.topic_name, each.partition_index) in offsets
        else Part(
            partition_index=each.partition_index,
            error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=_UNKNOWN,
        )
        for each in topic.partitions
    ]
    return answer
