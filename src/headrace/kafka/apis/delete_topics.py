"""DeleteTopics (20), versions 1-6.

Version notes
- 3: TOPIC_DELETION_DISABLED. 4: flexible. 5: error messages. 6: topics by id.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from headrace.kafka.denied import Place, Refused, Steps
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import names_of, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.security.access.required_acls import Operation, ResourceType

Asked = DeleteTopicsRequest.DeleteTopicState
Result = DeleteTopicsResponse.DeletableTopicResult
_STRICT_FROM = 5
"""First version in which clients support THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _names(request: DeleteTopicsRequest, context: RequestContext) -> Iterable[str]:
    return names_of(request.topics, context) if context.version >= 6 else request.topic_names


def _places(topic: Asked, _: DeleteTopicsRequest, context: RequestContext) -> Iterator[Place]:
    return ((ResourceType.TOPIC, name) for name in names_of((topic,), context))


def _outcome(topic: Asked, code: Code, message: str | None) -> Result:
    # A request by id must not reveal the name or existence of a hidden topic.
    if topic.name is None and code is Code.TOPIC_AUTHORIZATION_FAILED:
        code, message = Code.UNKNOWN_TOPIC_ID, f"no topic with id {topic.topic_id}"
    elif topic.name is None and code is Code.UNKNOWN_TOPIC_OR_PARTITION:
        code = Code.UNKNOWN_TOPIC_ID
    return Result(name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message)


_TOPICS = Each("topics", "responses", _outcome, _places)


def _by_state(request: DeleteTopicsRequest, context: RequestContext) -> None:
    """Convert topics of older versions to the form of version 6."""
    if context.version < 6 and request.topic_names:
        request.topics = [Asked(name=name) for name in request.topic_names]
        request.topic_names = []


def _take_out(request: DeleteTopicsRequest, context: RequestContext, refused: Refused) -> Steps:
    _by_state(request, context)
    return _TOPICS.take_out(request, context, refused)


@register(
    DeleteTopicsRequest,
    1,
    6,
    needs=(topics(Operation.DELETE, _names),),
    each=_TOPICS,
    refusal=_take_out,
    bound=BY_ITSELF,
)
def handle(request: DeleteTopicsRequest, context: RequestContext) -> AnswerItem:
    """Delete topics with their records."""
    _by_state(request, context)
    return partial(_delete, context)


async def _delete(context: RequestContext, asked: Asked) -> Result | None:
    broker, name = context.broker, asked.name
    if not broker.settings.delete_topic_enable:
        raise RequestError(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable=false")
    if name is not None and not broker.topics.has(name) and broker.topics.storage.topics.unreadable(name):
        await broker.topics.delete(name)
        context.changed(f"topic {name} deleted, whose registry entry could not be read")
        return None
    live = broker.topics.by_id(asked.topic_id) if name is None else broker.topics.get(name)
    context.count_change(len(live.partitions), strict_from=_STRICT_FROM)
    await broker.topics.delete(live.topic.name)
    context.changed(f"topic {live.topic.name} deleted")
    return Result(name=live.topic.name, topic_id=live.topic.id)
