"""AlterPartitionReassignments (45), versions 0-1 (KIP-455).

Behavior
- Brokers distribute partitions automatically. An assignment to the current replicas of a partition, in any order, is
  accepted and changes nothing. Another one is INVALID_REPLICA_ASSIGNMENT.
- No reassignment is ever in progress: a cancellation (null) is NO_REASSIGNMENT_IN_PROGRESS.

Version notes
- 1: whether the replication factor may change. It never does.
"""

from functools import partial

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import InvalidAssignment, check_brokers
from headrace.kafka.denied import by_error_code
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from headrace.security.access.required_acls import Operation

Asked = AlterPartitionReassignmentsRequest.ReassignablePartition
Result = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Reassigned = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


def _begin(request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None, responses=[]
    )


def _outcome(asked: Asked, code: Code, message: str | None) -> Reassigned:
    return Reassigned(partition_index=asked.partition_index, error_code=code, error_message=message or None)


@register(
    AlterPartitionReassignmentsRequest,
    0,
    1,
    needs=(cluster(Operation.ALTER),),
    refusal=by_error_code(AlterPartitionReassignmentsRequest.API_KEY),
    each=Each("topics", "responses", _outcome, of_topic=with_name(Result), begin=_begin),
)
async def handle(_: AlterPartitionReassignmentsRequest, context: RequestContext) -> AnswerItem:
    """Accept assignments to the current replicas, and refuse others."""
    await context.broker.topics.leading.current()
    return partial(_check, context.broker)


def _check(broker: Broker, named: AlterPartitionReassignmentsRequest.ReassignableTopic, asked: Asked) -> None:
    unknown, topic = Code.UNKNOWN_TOPIC_OR_PARTITION, named.name
    if not broker.topics.has(topic):
        raise RequestError(unknown, f"Unable to find a topic named {topic}.")
    live, index = broker.topics.get(topic), asked.partition_index
    if not 0 <= index < len(live.partitions):
        raise RequestError(unknown, f"Unable to find partition {topic}:{index}.")
    if asked.replicas is None:
        raise RequestError(Code.NO_REASSIGNMENT_IN_PROGRESS, "")
    try:
        check_brokers(broker.ownership, asked.replicas)
    except InvalidAssignment as error:
        raise RequestError(Code.INVALID_REPLICA_ASSIGNMENT, str(error)) from None
    present = live.replicas(broker.ownership, index)
    if sorted(asked.replicas) != sorted(present):
        raise RequestError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"brokers share partitions out by themselves: {topic}-{index} is on {present}, and stays there",
        )
