"""AlterPartitionReassignments (45), versions 0-1 (KIP-455).

Behavior
- Brokers share partitions out by themselves. An assignment to the replicas that a partition has, in any order, is
  accepted and changes nothing. Another one is INVALID_REPLICA_ASSIGNMENT.
- Nothing is ever ongoing: to cancel (null) is NO_REASSIGNMENT_IN_PROGRESS.

Version notes
- 1: whether the replication factor may change; it never does.
"""

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import InvalidAssignment, check_brokers
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from headrace.security.access.required_acls import Operation

Result = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Reassigned = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


@register(AlterPartitionReassignmentsRequest, 0, 1, needs=(cluster(Operation.ALTER),))
async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Accept the assignments that hold, and refuse others."""
    broker = context.broker
    await broker.topics.leading.current()
    pace = context.pace()
    responses = [
        Result(
            name=topic.name,
            partitions=[_answer(broker, topic.name, each) async for each in pace.each(topic.partitions)],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )


def _answer(broker: Broker, topic: str, asked: AlterPartitionReassignmentsRequest.ReassignablePartition) -> Reassigned:
    answer = Reassigned(partition_index=asked.partition_index, error_message=None)
    try:
        _check(broker, topic, asked)
    except RequestError as error:
        answer.error_code, answer.error_message = error.code, str(error) or None
    return answer


def _check(broker: Broker, topic: str, asked: AlterPartitionReassignmentsRequest.ReassignablePartition) -> None:
    """Raise RequestError unless a partition is to have the replicas that it has."""
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
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
