"""DeleteTopics (20), versions 1-6.

Version notes
- 3: TOPIC_DELETION_DISABLED. 4: flexible. 5: error messages. 6: topics by id.
"""

from collections.abc import Iterable
from uuid import UUID

from headrace.access.needs import Operation
from headrace.broker.broker import Broker
from headrace.kafka.codec.messages import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import names_of, topics
from headrace.kafka.registry import register
from headrace.topics.errors import TopicError, UnknownTopic

Result = DeleteTopicsResponse.DeletableTopicResult


def _names(request: DeleteTopicsRequest, exchange: Exchange) -> Iterable[str]:
    return names_of(request.topics, exchange) if exchange.version >= 6 else request.topic_names


@register(DeleteTopicsRequest, 1, 6, needs=(topics(Operation.DELETE, _names),))
async def handle(request: DeleteTopicsRequest, exchange: Exchange) -> DeleteTopicsResponse:
    """Delete topics with their records."""
    if exchange.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, UUID(int=0)) for name in request.topic_names]
    results = [await _delete(exchange.broker, name, topic_id) async for name, topic_id in exchange.pace().each(asked)]
    return DeleteTopicsResponse(responses=results)


async def _delete(broker: Broker, name: str | None, topic_id: UUID) -> Result:
    try:
        if not broker.settings.delete_topic_enable:
            raise RequestError(Code.TOPIC_DELETION_DISABLED, "delete.topic.enable=false")
        live = broker.topics.by_id(topic_id) if name is None else broker.topics.get(name)
        await broker.topics.delete(live.topic.name)
    except (TopicError, RequestError) as error:
        code = code_of(error)
        if name is None and isinstance(error, UnknownTopic):
            code = Code.UNKNOWN_TOPIC_ID
        return Result(name=name, topic_id=topic_id, error_code=code, error_message=str(error))
    return Result(name=live.topic.name, topic_id=live.topic.id)
