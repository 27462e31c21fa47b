"""ListPartitionReassignments (46), version 0 (KIP-455).

Behavior
- The response is empty: partitions move in one step when brokers start or stop, so no reassignment is ever in progress.
"""

from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
from headrace.security.access.required_acls import Operation


@register(ListPartitionReassignmentsRequest, 0, 0, needs=(cluster(Operation.DESCRIBE),), bound=None)
def handle(request: ListPartitionReassignmentsRequest, context: RequestContext) -> None:
    """Report that no reassignment is in progress."""
    del request
    context.answer(ListPartitionReassignmentsResponse(error_message=None, topics=[]))
