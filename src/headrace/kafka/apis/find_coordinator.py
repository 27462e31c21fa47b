"""FindCoordinator (10), versions 0-4.

Behavior
- The one broker coordinates every group. Transactional ids have no coordinator here.

Version notes
- 1: key types. 3: flexible. 4: many keys at once (KIP-699).
"""

from collections.abc import Iterable

from headrace.access.needs import Operation
from headrace.kafka.codec.messages import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.kafka.errors import Code
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import Names, groups, transactional_ids
from headrace.kafka.registry import register

GROUP, TRANSACTION = 0, 1
_NOWHERE = -1


def _keys(key_type: int) -> Names:
    def keys(request: FindCoordinatorRequest, exchange: Exchange) -> Iterable[str]:
        if request.key_type != key_type:
            return ()
        return (request.key,) if exchange.version < 4 else request.coordinator_keys

    return keys


@register(
    FindCoordinatorRequest,
    0,
    4,
    needs=(groups(Operation.DESCRIBE, _keys(GROUP)), transactional_ids(Operation.DESCRIBE, _keys(TRANSACTION))),
)
async def handle(request: FindCoordinatorRequest, exchange: Exchange) -> FindCoordinatorResponse:
    """Name the broker that coordinates the groups asked for."""
    node_id = exchange.broker.node_id
    host, port = exchange.advertised
    code, message = Code.NONE, None
    if request.key_type != GROUP:
        code, message = Code.COORDINATOR_NOT_AVAILABLE, "only groups have a coordinator: no transactions here"
        node_id, host, port = _NOWHERE, "", _NOWHERE
    if exchange.version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=message, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=message
            )
            async for key in exchange.pace().each(request.coordinator_keys)
        ]
    )
