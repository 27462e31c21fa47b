"""CreatePartitions (37), versions 0-3 (KIP-195).

Behavior
- A topic's partitions can become more, never fewer. Records that are there stay where they are.
- Manual replica assignments are taken when they name this broker and nothing else.

Version notes
- 2: flexible.
"""

from headrace.access.needs import Operation
from headrace.broker.broker import Broker
from headrace.kafka.codec.messages import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import each_topic, topics
from headrace.kafka.registry import register
from headrace.topics.errors import TopicError

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


@register(CreatePartitionsRequest, 0, 3, needs=(topics(Operation.ALTER, each_topic),))
async def handle(request: CreatePartitionsRequest, exchange: Exchange) -> CreatePartitionsResponse:
    """Add partitions to topics, each on its own."""
    names = [topic.name for topic in request.topics]
    results = []
    for topic in request.topics:
        try:
            if names.count(topic.name) > 1:
                raise RequestError(Code.INVALID_REQUEST, f"topic {topic.name!r} is named more than once")
            await _grow(exchange.broker, topic, validate_only=request.validate_only)
        except (TopicError, RequestError) as error:
            results.append(Result(name=topic.name, error_code=code_of(error), error_message=str(error)))
        else:
            results.append(Result(name=topic.name))
    return CreatePartitionsResponse(results=results)


async def _grow(broker: Broker, topic: CreatePartitionsRequest.CreatePartitionsTopic, *, validate_only: bool) -> None:
    broker.topics.validate_growth(topic.name, topic.count)
    if topic.assignments is not None:
        added = topic.count - len(broker.topics.get(topic.name).partitions)
        if len(topic.assignments) != added or any(each.broker_ids != [broker.node_id] for each in topic.assignments):
            raise RequestError(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, and the only broker is {broker.node_id}",
            )
    if not validate_only:
        await broker.topics.grow(topic.name, topic.count)
