"""ListTransactions (66), versions 0-2 (KIP-664): the transactional ids of this broker.

Behavior
- COORDINATOR_LOAD_IN_PROGRESS if the broker has not loaded all of its IDs yet: a list would lack some.
- Filters are combined. A filter for states that do not exist is returned as unknown, as in Kafka.

Version notes
- 1: filter by duration (KIP-994).
- 2: filter by a regular expression of RE2 that matches whole ids (KIP-1152). An invalid one is
  INVALID_REGULAR_EXPRESSION, and so is one above 1 KiB or 2,048 instructions.
"""

from collections.abc import Iterator

from headrace.broker.admin.acl_authorizer import Grants
from headrace.kafka.denied import No, Refusal, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import transactional_ids
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ListTransactionsRequest, ListTransactionsResponse
from headrace.security.access.required_acls import Operation
from headrace.text.patterns import InvalidPattern, Pattern
from headrace.transactions.description import TransactionDescription
from headrace.transactions.model import TransactionState

State = ListTransactionsResponse.TransactionState
_STATES = {state.value for state in TransactionState}
_BYTES = 200
"""Memory for one transactional id while the response is built, without its name."""
NEEDS = (transactional_ids(Operation.DESCRIBE, lambda request, _: (), shown=True),)


def _no(_: ListTransactionsRequest, __: RequestContext, no: No) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=no.code)


def _hide(response: ListTransactionsResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    shown = []
    for state in response.transaction_states:
        yield
        if grants.allow(NEEDS[0], state.transactional_id):
            shown.append(state)
    response.transaction_states = shown


@register(ListTransactionsRequest, 0, 2, needs=NEEDS, refusal=Refusal(take_out=whole(_no), hide=_hide))
async def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    """List transactional ids."""
    coordinator = context.broker.transactions.coordinator
    try:
        # As in Kafka, an empty pattern is none.
        pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except InvalidPattern:
        return ListTransactionsResponse(error_code=Code.INVALID_REGULAR_EXPRESSION)
    if not await coordinator.complete():
        return ListTransactionsResponse(error_code=Code.COORDINATOR_LOAD_IN_PROGRESS)
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    now_ms = context.broker.clock.now_ms()
    await context.turn()
    names = coordinator.names()
    await context.reserve(len(names) * _BYTES + 2 * sum(map(len, names)))
    found = (each for name in names if (each := coordinator.describe(name)) is not None)

    def matches(each: TransactionDescription) -> bool:
        if states and each.state.value not in states:
            return False
        if producers and each.producer_id not in producers:
            return False
        age_ms = each.running_ms(now_ms)
        if request.duration_filter >= 0 and (age_ms is None or age_ms <= request.duration_filter):
            return False
        return pattern is None or pattern.matches(each.transactional_id)

    return ListTransactionsResponse(
        unknown_state_filters=sorted(states - _STATES),
        transaction_states=[
            State(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.value,
            )
            async for each in context.parts(found)
            if matches(each)
        ],
    )
