"""AddPartitionsToTxn (24), versions 0-3 (KIP-98): add partitions to a transaction.

Behavior
- The partitions are durably in the transaction before the response. The first ones begin it.
- All are added, or none. If some cannot be added, the others have OPERATION_NOT_ATTEMPTED.
- A partition of a native topic has POLICY_VIOLATION: such topics have no transactions.

Version notes
- 2: PRODUCER_FENCED. 3: flexible. Versions from 4 on are for brokers of Kafka, and are not offered.
"""

from collections.abc import Iterator

from headrace.broker.topics.live import LiveTopic
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, code_of, transaction_code
from headrace.kafka.required_acls import topics, transactional_ids
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import UnknownTopic
from headrace.topics.model import is_reserved
from headrace.transactions.effects import AddResult
from headrace.transactions.events import Add
from headrace.transactions.model import PartitionId

Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
Partition = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
_FENCED_FROM = 2


def _names(request: AddPartitionsToTxnRequest, _: RequestContext) -> Iterator[str]:
    return (topic.name for topic in request.v3_and_below_topics)


def _places(topic: Topic, request: AddPartitionsToTxnRequest, _: RequestContext) -> Iterator[Place]:
    yield ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id
    yield ResourceType.TOPIC, topic.name


def _id(request: AddPartitionsToTxnRequest, _: RequestContext) -> tuple[str]:
    return (request.v3_and_below_transactional_id,)


def _outcome(index: int, code: Code, _: str | None) -> Partition:
    return Partition(partition_index=index, partition_error_code=code)


def _of_topic(topic: Topic, partitions: list[Partition]) -> Result:
    return Result(name=topic.name, results_by_partition=partitions)


def _find(context: RequestContext, name: str, index: int) -> LiveTopic | Code:
    """Return the topic of a partition, or the error if it cannot be in a transaction."""
    if is_reserved(name):
        return Code.INVALID_TOPIC_EXCEPTION
    try:
        live = context.broker.topics.get(name)
        live.partition(index)
    except UnknownTopic as error:
        return code_of(error)
    return Code.POLICY_VIOLATION if live.config.native else live


@register(
    AddPartitionsToTxnRequest,
    0,
    3,
    needs=(topics(Operation.WRITE, _names), transactional_ids(Operation.WRITE, _id)),
    each=Each("v3_and_below_topics", "results_by_topic_v3_and_below", _outcome, _places, _of_topic),
    bound=OF_CHANGES,
)
async def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> AnswerItem:
    """Add partitions."""
    errors: dict[tuple[str, int], Code] = {}
    found: dict[PartitionId, None] = {}
    copies = 1
    pace = context.pace()
    async for topic in pace.each(request.v3_and_below_topics):
        async for index in pace.each(topic.partitions):
            live = _find(context, topic.name, index)
            if isinstance(live, Code):
                errors[topic.name, index] = live
            else:
                found[PartitionId(live.topic.id, index)] = None
                copies = max(copies, live.config.min_insync_replicas)
    if errors or context.taken_out:
        return lambda topic, index: _outcome(index, errors.get((topic.name, index), Code.OPERATION_NOT_ATTEMPTED), None)
    event = Add(
        token=object(),
        producer_id=request.v3_and_below_producer_id,
        epoch=request.v3_and_below_producer_epoch,
        participants=tuple(found),
        copies=copies,
    )
    result = await context.ask_transaction(request.v3_and_below_transactional_id, event)
    assert isinstance(result, AddResult)
    code = transaction_code(result.error, fenced=context.version >= _FENCED_FROM, abortable=False)
    return lambda _, index: _outcome(index, code, None)
