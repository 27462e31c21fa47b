"""InitProducerId (22), versions 0-5.

Behavior
- Returns a new unique id with epoch 0, for idempotent producers (KIP-98).
- A transactional id has its own producer id, and each new producer gets the next epoch. Earlier producers are fenced.
  An open transaction is aborted; until it has ended, the response is CONCURRENT_TRANSACTIONS.

Version notes
- 2: flexible. 3: a producer may send its id and epoch (KIP-360). Without a transactional id, it gets a new id.
  4: another error code for a fenced producer. 5: an error of transactions.
"""

from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, code_of, transaction_code
from headrace.kafka.required_acls import cluster, its_transaction, transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_PRODUCER_IDS
from headrace.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError
from headrace.transactions.effects import InitResult
from headrace.transactions.events import Init
from headrace.transactions.model import NO_EPOCH, NO_PRODUCER_ID

_FENCED_FROM, _ABORTABLE_FROM = 4, 5
NEEDS = (
    transactional_ids(Operation.WRITE, its_transaction),
    # A principal that may write to a topic may write idempotently (KIP-679).
    cluster(
        Operation.IDEMPOTENT_WRITE,
        lambda request: request.transactional_id is None,
        instead=(Operation.WRITE, ResourceType.TOPIC),
    ),
)


def _no(_: InitProducerIdRequest, __: RequestContext, no: No) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=no.code, producer_id=-1, producer_epoch=-1)


@register(InitProducerIdRequest, 0, 5, needs=NEEDS, refusal=whole(_no), bound=OF_PRODUCER_IDS)
async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Assign a producer id."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=Code.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    if request.transactional_id is not None:
        event = Init(
            token=object(),
            timeout_ms=request.transaction_timeout_ms,
            producer_id=request.producer_id,
            epoch=request.producer_epoch,
        )
        result = await context.ask_transaction(request.transactional_id, event)
        assert isinstance(result, InitResult)
        fenced, abortable = context.version >= _FENCED_FROM, context.version >= _ABORTABLE_FROM
        code = transaction_code(result.error, fenced=fenced, abortable=abortable)
        return InitProducerIdResponse(error_code=code, producer_id=result.producer_id, producer_epoch=result.epoch)
    try:
        producer_id = await context.broker.new_producer_id()
    except TopicError as error:
        return InitProducerIdResponse(error_code=code_of(error), producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
