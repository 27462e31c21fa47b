"""AddOffsetsToTxn (25), versions 0-4 (KIP-98): add a consumer group to a transaction.

Behavior
- The group is durably in the transaction before the response. TxnOffsetCommit then stores its pending offsets.
- It may begin the transaction.

Version notes
- 2: PRODUCER_FENCED. 3: flexible. 4: an error of transactions.
"""

from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, transaction_code
from headrace.kafka.required_acls import groups, its_group, its_transaction, transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from headrace.security.access.required_acls import Operation
from headrace.transactions.effects import AddResult
from headrace.transactions.events import Add
from headrace.transactions.model import GroupId

_FENCED_FROM, _ABORTABLE_FROM = 2, 4


def _no(_: AddOffsetsToTxnRequest, __: RequestContext, no: No) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=no.code)


@register(
    AddOffsetsToTxnRequest,
    0,
    4,
    needs=(transactional_ids(Operation.WRITE, its_transaction), groups(Operation.READ, its_group)),
    refusal=whole(_no),
    bound=OF_CHANGES,
)
async def handle(request: AddOffsetsToTxnRequest, context: RequestContext) -> AddOffsetsToTxnResponse:
    """Add a group."""
    if not request.group_id:
        return AddOffsetsToTxnResponse(error_code=Code.INVALID_GROUP_ID)
    event = Add(
        token=object(),
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        participants=(GroupId(request.group_id),),
    )
    result = await context.ask_transaction(request.transactional_id, event)
    assert isinstance(result, AddResult)
    fenced, abortable = context.version >= _FENCED_FROM, context.version >= _ABORTABLE_FROM
    return AddOffsetsToTxnResponse(error_code=transaction_code(result.error, fenced=fenced, abortable=abortable))
