"""DeleteTopics (20), versions 1-6.

Version notes
- 3: TOPIC_DELETION_DISABLED. 4: flexible. 5: error messages. 6: topics by id.
"""

from collections.abc import Iterable, Iterator
from uuid import UUID

from headrace.kafka.denied import No, Place, Refused, Steps, parts
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import names_of, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, UnknownTopic

Result = DeleteTopicsResponse.DeletableTopicResult
_STRICT_FROM = 5
"""The version from which on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _names(request: DeleteTopicsRequest, context: RequestContext) -> Iterable[str]:
    return names_of(request.topics, context) if context.version >= 6 else request.topic_names


def _places(
    topic: DeleteTopicsRequest.DeleteTopicState, _: DeleteTopicsRequest, context: RequestContext
) -> Iterator[Place]:
    return ((ResourceType.TOPIC, name) for name in names_of((topic,), context))


def _no(topic: DeleteTopicsRequest.DeleteTopicState, no: No, _: RequestContext) -> Result:
    # Who knows an id only is not told its name, nor that there is such a topic.
    if topic.name is None and no.code is Code.TOPIC_AUTHORIZATION_FAILED:
        no = No(Code.UNKNOWN_TOPIC_ID, f"no topic with id {topic.topic_id}")
    return Result(name=topic.name, topic_id=topic.topic_id, error_code=no.code, error_message=no.message)


def _places_named(name: str, _: DeleteTopicsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TOPIC, name


def _no_named(name: str, no: No, _: RequestContext) -> Result:
    return Result(name=name, error_code=no.code, error_message=no.message)


_BY_STATE = parts("topics", _places, _no, "responses")
_BY_NAME = parts("topic_names", _places_named, _no_named, "responses")


def _take_out(request: DeleteTopicsRequest, context: RequestContext, refused: Refused) -> Steps:
    return (_BY_STATE if context.version >= 6 else _BY_NAME)(request, context, refused)


@register(DeleteTopicsRequest, 1, 6, needs=(topics(Operation.DELETE, _names),), refusal=_take_out, bound=BY_ITSELF)
async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Delete topics with their records."""
    if context.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, UUID(int=0)) for name in request.topic_names]
    results = [await _delete(context, name, topic_id) async for name, topic_id in context.parts(asked)]
    return DeleteTopicsResponse(responses=results)


async def _delete(context: RequestContext, name: str | None, topic_id: UUID) -> Result:
    broker = context.broker
    try:
        if not broker.settings.delete_topic_enable:
            raise RequestError(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable=false")
        if name is not None and not broker.topics.has(name) and broker.topics.storage.topics.unreadable(name):
            await broker.topics.delete(name)
            context.changed(f"topic {name} deleted, whose registry entry could not be read")
            return Result(name=name, topic_id=topic_id)
        live = broker.topics.by_id(topic_id) if name is None else broker.topics.get(name)
        context.count_change(len(live.partitions), strict_from=_STRICT_FROM)
        await broker.topics.delete(live.topic.name)
        context.changed(f"topic {live.topic.name} deleted")
    except (TopicError, RequestError) as error:
        code = code_of(error)
        if name is None and isinstance(error, UnknownTopic):
            code = Code.UNKNOWN_TOPIC_ID
        return Result(name=name, topic_id=topic_id, error_code=code, error_message=str(error))
    return Result(name=live.topic.name, topic_id=live.topic.id)
