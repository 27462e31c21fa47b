"""OffsetDelete (47), version 0 (KIP-496).

Behavior
- Committed offsets in topics that a member reads are not deleted: GROUP_SUBSCRIBED_TO_TOPIC.
- A group that does not exist is GROUP_ID_NOT_FOUND.
"""

from typing import Any

from headrace.groups.effects import DeleteOffsetsResult
from headrace.groups.errors import GroupError
from headrace.groups.events import DeleteOffsets
from headrace.kafka.apis.offset_commit import answer_of, find_partitions, in_steps
from headrace.kafka.denied import Refused, Rest, Steps, topic_named
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import each_topic, groups, its_group, topics
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.security.access.required_acls import Operation, ResourceType


def _outcome(asked: Any, code: Code, _: str | None) -> OffsetDeleteResponse.OffsetDeleteResponsePartition:
    return OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=asked.partition_index, error_code=code)


_TOPICS = Each("topics", "topics", _outcome, topic_named, with_name(OffsetDeleteResponse.OffsetDeleteResponseTopic))


def _take_out(request: OffsetDeleteRequest, context: RequestContext, refused: Refused) -> Steps:
    no = refused.get((ResourceType.GROUP, request.group_id))
    if no is not None:
        return Rest(OffsetDeleteResponse(error_code=no.code, topics=[]))
    return (yield from _TOPICS.take_out(request, context, refused))


@register(
    OffsetDeleteRequest,
    0,
    0,
    needs=(groups(Operation.DELETE, its_group), topics(Operation.READ, each_topic)),
    refusal=_take_out,
    each=_TOPICS,
    bound=OF_CHANGES,
)
async def handle(request: OffsetDeleteRequest, context: RequestContext) -> AnswerItem | OffsetDeleteResponse:
    """Delete committed offsets of a group."""
    broker = context.broker
    refused = await broker.groups.ready(request.group_id)
    if refused is not None:
        return OffsetDeleteResponse(error_code=code_of(refused), topics=[])
    if not broker.groups.exists(request.group_id):
        return OffsetDeleteResponse(error_code=code_of(GroupError.GROUP_ID_NOT_FOUND), topics=[])
    found, errors, _ = await find_partitions(request.topics, context)
    async for number, some in in_steps(found, context):
        result = await context.ask_group(
            request.group_id, DeleteOffsets(token=(context, number), partitions=tuple(some))
        )
        assert isinstance(result, DeleteOffsetsResult)
        if result.error is not None:
            return OffsetDeleteResponse(error_code=code_of(result.error), topics=[])
        errors.update({place: code_of(error) for place, error in result.partitions.items()})
    if context.done:
        return OffsetDeleteResponse(topics=[])
    context.changed(f"positions of group {request.group_id} deleted: {len(found)} partitions")
    return answer_of(errors, _outcome)
