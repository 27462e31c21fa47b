"""FindCoordinator (10), versions 0-5.

Behavior
- The cluster membership determines the coordinator of each group and transactional id.
- While a live broker runs a version without transactions, a transactional id has COORDINATOR_NOT_AVAILABLE.

Version notes
- 1: key types. 3: flexible. 4: many keys per request (KIP-699). 5: an error of transactions.
"""

from collections.abc import Iterable, Iterator

from headrace.kafka.denied import No, Place, Refused, Steps, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import Names, groups, transactional_ids
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.security.access.required_acls import Operation, ResourceType

Coordinator = FindCoordinatorResponse.Coordinator
GROUP, TRANSACTION = 0, 1
_NOWHERE = -1
_NO_TRANSACTIONS = "a live broker runs a version without transactions, or starts"


def _keys(key_type: int) -> Names:
    def keys(request: FindCoordinatorRequest, context: RequestContext) -> Iterable[str]:
        if request.key_type != key_type:
            return ()
        return (request.key,) if context.version < 4 else request.coordinator_keys

    return keys


def _places(key: str, request: FindCoordinatorRequest, _: RequestContext) -> Iterator[Place]:
    yield ResourceType.GROUP if request.key_type == GROUP else ResourceType.TRANSACTIONAL_ID, key


def _refused(key: str, code: Code, message: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=_NOWHERE, host="", port=_NOWHERE, error_code=code, error_message=message)


def _no_one(_: FindCoordinatorRequest, __: RequestContext, no: No) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=no.code, error_message=no.message, node_id=_NOWHERE, host="", port=_NOWHERE
    )


_ONE, _MANY = whole(_no_one), Each("coordinator_keys", "coordinators", _refused, _places)


def _take_out(request: FindCoordinatorRequest, context: RequestContext, refused: Refused) -> Steps:
    return (_ONE if context.version < 4 else _MANY.take_out)(request, context, refused)


@register(
    FindCoordinatorRequest,
    0,
    5,
    needs=(groups(Operation.DESCRIBE, _keys(GROUP)), transactional_ids(Operation.DESCRIBE, _keys(TRANSACTION))),
    refusal=_take_out,
    each=_MANY,
)
def handle(request: FindCoordinatorRequest, context: RequestContext) -> AnswerItem | FindCoordinatorResponse:
    """Return the coordinators of groups and transactional ids."""
    nodes = {node_id: (host, port) for node_id, host, port in context.nodes}

    def find(key: str) -> Coordinator:
        if request.key_type == TRANSACTION:
            if context.broker.transactions.unavailable:
                return _refused(key, Code.COORDINATOR_NOT_AVAILABLE, _NO_TRANSACTIONS)
            node_id = context.broker.transactions.coordinator_of(key)
        elif request.key_type == GROUP:
            node_id = context.broker.coordinator_of(key)
        else:
            return _refused(key, Code.COORDINATOR_NOT_AVAILABLE, "only groups and transactional ids have a coordinator")
        if node_id not in nodes:
            return _refused(key, Code.COORDINATOR_NOT_AVAILABLE, "no broker is alive that could coordinate it")
        host, port = nodes[node_id]
        return Coordinator(key=key, node_id=node_id, host=host, port=port, error_message=None)

    if context.version < 4:
        one = find(request.key)
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    return find
