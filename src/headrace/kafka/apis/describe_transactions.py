"""DescribeTransactions (65), version 0 (KIP-664): the state of transactional ids.

Behavior
- Producer id and epoch are those that the producer has, or learns at the end of the transaction.
- Partitions of an open transaction are listed, except those of deleted topics and of topics that the principal may not
  describe.
- An unknown transactional id is TRANSACTIONAL_ID_NOT_FOUND.
"""

from collections.abc import Iterator

from headrace.broker.admin.acl_authorizer import Grants
from headrace.kafka.denied import No, Place, Refusal, parts
from headrace.kafka.errors import Code, transaction_code
from headrace.kafka.required_acls import topics, transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import DescribeTransactionsRequest, DescribeTransactionsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.transactions.description import TransactionDescription
from headrace.transactions.errors import TransactionError

State = DescribeTransactionsResponse.TransactionState
Topic = DescribeTransactionsResponse.TopicData
_PARTITION_BYTES = 16
NEEDS = (
    transactional_ids(Operation.DESCRIBE, lambda request, _: request.transactional_ids),
    topics(Operation.DESCRIBE, lambda request, _: (), shown=True),
)


def _places(name: str, _: DescribeTransactionsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.TRANSACTIONAL_ID, name


def _refused(name: str, code: Code) -> State:
    return State(
        error_code=code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=[],
    )


def _no(name: str, no: No, _: RequestContext) -> State:
    return _refused(name, no.code)


def _hide(response: DescribeTransactionsResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    for state in response.transaction_states:
        shown = []
        for topic in state.topics:
            yield
            if grants.allow(NEEDS[1], topic.topic):
                shown.append(topic)
        state.topics = shown


@register(
    DescribeTransactionsRequest,
    0,
    0,
    needs=NEEDS,
    refusal=Refusal(take_out=parts("transactional_ids", _places, _no, "transaction_states"), hide=_hide),
    bound=OF_GROUPS,
)
async def handle(request: DescribeTransactionsRequest, context: RequestContext) -> DescribeTransactionsResponse:
    """Describe transactional ids."""
    coordinator = context.broker.transactions.coordinator
    names = dict.fromkeys(request.transactional_ids)
    errors = {name: await coordinator.ready(name) async for name in context.pace().each(names)}
    sizes = {}
    for name in names:
        found = coordinator.describe(name)
        count = 0 if found is None else sum(map(len, found.partitions.values()))
        sizes[name] = len(name) + count * _PARTITION_BYTES
    fitting = await context.reserve_parts(sizes)
    response = DescribeTransactionsResponse()
    async for name in context.pace().each(names):
        error = errors[name] or (None if coordinator.describe(name) else TransactionError.TRANSACTIONAL_ID_NOT_FOUND)
        found = coordinator.describe(name)
        if found is not None and name not in fitting:
            error = TransactionError.POLICY_VIOLATION
        if error is not None or found is None:
            response.transaction_states.append(_refused(name, transaction_code(error, fenced=True, abortable=True)))
        else:
            response.transaction_states.append(_described(found, context))
    return response


def _described(found: TransactionDescription, context: RequestContext) -> State:
    topics = []
    for topic_id, indexes in found.partitions.items() if found.state.open else ():
        live = context.broker.topics.with_id(topic_id.bytes)
        if live is not None:
            topics.append(Topic(topic=live.topic.name, partitions=list(indexes)))
    return State(
        transactional_id=found.transactional_id,
        transaction_state=found.state.value,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=topics,
    )
