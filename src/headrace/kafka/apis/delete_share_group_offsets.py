"""DeleteShareGroupOffsets (92), version 0: delete the offsets of a share group in topics (KIP-932).

Behavior
- The group must have no members. Its next member begins according to `share.auto.offset.reset`.
- Returns UNKNOWN_TOPIC_OR_PARTITION for a topic that the group never had.
"""

from collections.abc import Iterable
from typing import Any

from headrace.groups.sharing.events import DeleteShareOffsets, ShareOffsetsResult
from headrace.kafka.apis.alter_share_group_offsets import places
from headrace.kafka.denied import No, parts
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, its_group, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError, cut

Response = DeleteShareGroupOffsetsResponse
Topic = Response.DeleteShareGroupOffsetsResponseTopic
_NOTHING = "There is no offset information to delete."


def _names(request: DeleteShareGroupOffsetsRequest, _: RequestContext) -> Iterable[str]:
    return (topic.topic_name for topic in request.topics)


def _no(topic: Any, no: No, _: RequestContext) -> Topic:
    return Topic(topic_name=topic.topic_name, error_code=no.code, error_message=no.message)


@register(
    DeleteShareGroupOffsetsRequest,
    0,
    0,
    needs=(groups(Operation.DELETE, its_group), topics(Operation.READ, _names)),
    refusal=parts("topics", places, _no, "responses"),
    element_bytes=2,
    bound=OF_CHANGES,
)
async def handle(request: DeleteShareGroupOffsetsRequest, context: RequestContext) -> Response:
    """Delete offsets of a share group."""
    broker = context.broker
    named = tuple(dict.fromkeys(_names(request, context)))
    result = await context.ask_group(request.group_id, DeleteShareOffsets(token=context, topics=named))
    assert isinstance(result, ShareOffsetsResult)
    if result.error is not None:
        return Response(error_code=code_of(result.error), error_message=result.message or None)
    try:
        await broker.shares.drop(request.group_id, result.states)
    except TopicError as error:
        # A state that remains is outdated: the next member begins with a later state epoch.
        return Response(error_code=code_of(error), error_message=cut(str(error)))
    deleted = {state.topic: state.topic_id for state in result.states}
    if deleted:
        context.changed(f"offsets of share group {request.group_id} deleted")
    return Response(
        responses=[
            Topic(topic_name=name, topic_id=deleted[name])
            if name in deleted
            else Topic(topic_name=name, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=_NOTHING)
            for name in named
        ]
    )
