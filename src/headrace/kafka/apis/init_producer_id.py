"""InitProducerId (22), versions 0-5.

Behavior
- Returns a new unique id with epoch 0, for idempotent producers (KIP-98).
- A transactional id is refused: this server has no transactions.

Version notes
- 2: flexible. 3: a producer may send its id and epoch (KIP-360). It gets a new id, which has the same effect without
  transactions. 4: another error code for a fenced producer. 5: an error of transactions.
"""

from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import cluster, its_transaction, transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_PRODUCER_IDS
from headrace.protocol.messages import InitProducerIdRequest, InitProducerIdResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError

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
    if request.transactional_id is not None:
        return InitProducerIdResponse(
            error_code=Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_id=-1, producer_epoch=-1
        )
    try:
        producer_id = await context.broker.new_producer_id()
    except TopicError as error:
        return InitProducerIdResponse(error_code=code_of(error), producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
