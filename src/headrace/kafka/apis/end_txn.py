"""EndTxn (26), versions 0-5 (KIP-98): commit or abort a transaction.

Behavior
- The decision is durable before the response. Partitions and groups end then, usually before the response as well.
- A transaction that ended in the same way is a success again. The other outcome is INVALID_TXN_STATE.

Version notes
- 2: PRODUCER_FENCED. 3: flexible. 4: an error of transactions. 5: producer id and epoch of the next transaction
  (KIP-890). An abort without a transaction succeeds.
"""

from headrace.kafka.errors import transaction_code
from headrace.kafka.required_acls import its_transaction, transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import EndTxnRequest, EndTxnResponse
from headrace.security.access.required_acls import Operation
from headrace.transactions.effects import EndResult
from headrace.transactions.events import End
from headrace.transactions.model import TV1, TV2

_FENCED_FROM, _ABORTABLE_FROM, _BUMPS_FROM = 2, 4, 5


@register(EndTxnRequest, 0, 5, needs=(transactional_ids(Operation.WRITE, its_transaction),), bound=OF_CHANGES)
async def handle(request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """End a transaction."""
    version = context.version
    event = End(
        token=object(),
        producer_id=request.producer_id,
        epoch=request.producer_epoch,
        commit=request.committed,
        version=TV2 if version >= _BUMPS_FROM else TV1,
    )
    result = await context.ask_transaction(request.transactional_id, event)
    assert isinstance(result, EndResult)
    code = transaction_code(result.error, fenced=version >= _FENCED_FROM, abortable=version >= _ABORTABLE_FROM)
    return EndTxnResponse(error_code=code, producer_id=result.producer_id, producer_epoch=result.epoch)
