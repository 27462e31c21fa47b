"""DescribeProducers (61), version 0 (KIP-664).

Behavior
- Lists the idempotent and transactional producers that the leader of a partition remembers, with the first offset of an
  open transaction.
- The coordinator epoch is the number of the producer's last ended transaction, or -1.
- A native topic lists none: their producers are in Redis.
"""

from collections.abc import Iterator

from headrace.kafka.denied import No, Place, parts
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError

Asked = DescribeProducersRequest.TopicRequest
Topic = DescribeProducersResponse.TopicResponse
Partition = DescribeProducersResponse.PartitionResponse
State = DescribeProducersResponse.ProducerState
_PRODUCER_BYTES = 300
"""Memory for one producer while the response is built and sent."""


def _places(topic: Asked, _: DescribeProducersRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TOPIC, topic.name


def _no(topic: Asked, no: No, _: RequestContext) -> Topic:
    return Topic(name=topic.name, partitions=[_failed(index, no.code, no.message) for index in topic.partition_indexes])


def _failed(index: int, code: Code, message: str | None) -> Partition:
    return Partition(partition_index=index, error_code=code, error_message=message, active_producers=[])


@register(
    DescribeProducersRequest,
    0,
    0,
    needs=(topics(Operation.READ, each_topic),),
    refusal=parts("topics", _places, _no, "topics"),
    bound=OF_LOGS,
)
async def handle(request: DescribeProducersRequest, context: RequestContext) -> None:
    """Describe the producers of partitions."""
    await context.turn()
    asked = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    await context.reserve(sum([_count(context, *each) async for each in context.parts(asked)]) * _PRODUCER_BYTES)
    response = DescribeProducersResponse(topics=[])
    for topic in request.topics:
        described = [await _described(context, topic.name, index) for index in topic.partition_indexes]
        response.topics.append(Topic(name=topic.name, partitions=described))
    await context.answer_in_pieces(response)


def _count(context: RequestContext, topic: str, index: int) -> int:
    try:
        log = context.broker.topics.partition(topic, index).log
    except TopicError:
        return 1
    return 1 if log is None else 1 + log.producers


async def _described(context: RequestContext, topic: str, index: int) -> Partition:
    try:
        partition = context.broker.topics.partition(topic, index)
        partition.check_led()
    except TopicError as error:
        return _failed(index, code_of(error), str(error))
    states = () if partition.log is None else partition.log.producer_states()
    return Partition(
        partition_index=index,
        error_code=Code.NONE,
        active_producers=[
            State(
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_use_ms,
                coordinator_epoch=each.ended,
                current_txn_start_offset=each.transaction_start,
            )
            async for each in context.parts(states)
        ],
    )
