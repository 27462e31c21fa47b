"""ElectLeaders (43), versions 0-2 (KIP-460).

Behavior
- Brokers choose leaders automatically, and the leader is always the preferred replica. A partition with a leader is
  ELECTION_NOT_NEEDED for both election types.
- A partition without a leader gets one when a broker takes it over. Until then it is PREFERRED_LEADER_NOT_AVAILABLE, or
  ELIGIBLE_LEADERS_NOT_AVAILABLE for an unclean election.
- Null selects all partitions. As in Kafka, the response then names every topic, with the partitions that have no
  leader.

Version notes
- 1: the election type, and an error code for the whole response. 2: flexible.
"""

from headrace.broker.partition.partition import Partition
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from headrace.security.access.required_acls import Operation

PREFERRED, UNCLEAN = 0, 1
_TOPIC_BYTES = 300
"""Memory for one topic in a response about all of them."""

Result = ElectLeadersResponse.ReplicaElectionResult
Elected = ElectLeadersResponse.PartitionResult


def _outcome(index: int, code: Code, message: str | None) -> Elected:
    return Elected(partition_id=index, error_code=code, error_message=message)


def _topic(topic: ElectLeadersRequest.TopicPartitions, partitions: list[Elected]) -> Result:
    return Result(topic=topic.topic, partition_result=partitions)


def _all(request: ElectLeadersRequest, code: Code, message: str) -> ElectLeadersResponse:
    results = [
        _topic(topic, [_outcome(index, code, message) for index in topic.partitions])
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _no(request: ElectLeadersRequest, _: RequestContext, no: No) -> ElectLeadersResponse:
    return _all(request, no.code, no.message)


@register(
    ElectLeadersRequest,
    0,
    2,
    needs=(cluster(Operation.ALTER),),
    refusal=whole(_no),
    each=Each("topic_partitions", "replica_election_results", _outcome, of_topic=_topic),
)
async def handle(request: ElectLeadersRequest, context: RequestContext) -> AnswerItem | ElectLeadersResponse:
    """Report that no partition needs another leader."""
    kind = request.election_type
    if kind not in (PREFERRED, UNCLEAN):
        return _all(request, Code.INVALID_REQUEST, f"Unknown election type {kind}")
    await context.broker.topics.leading.current()
    topics = context.broker.topics
    if request.topic_partitions is None:
        pace = context.pace()
        results: list[Result] = []
        await context.reserve(sum(1 for _ in topics) * _TOPIC_BYTES)
        async for live in pace.each(topics.with_internal()):
            failed = [
                _elected(index, partition, kind)
                async for index, partition in pace.each(enumerate(live.partitions))
                if partition.named.node_id < 0
            ]
            results.append(Result(topic=live.topic.name, partition_result=failed))
        return ElectLeadersResponse(replica_election_results=results)

    def elect(topic: ElectLeadersRequest.TopicPartitions, index: int) -> Elected:
        if not topics.has(topic.topic):
            return _outcome(index, Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic.topic}")
        found = topics.get(topic.topic).partitions
        if not 0 <= index < len(found):
            return _outcome(index, Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic.topic}-{index}")
        return _elected(index, found[index], kind)

    return elect


def _elected(index: int, partition: Partition, kind: int) -> Elected:
    if partition.named.node_id >= 0:
        code, message = Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    elif kind == PREFERRED:
        code = Code.PREFERRED_LEADER_NOT_AVAILABLE
        message = "The preferred leader was not available: another broker takes the partition over."
    else:
        code = Code.ELIGIBLE_LEADERS_NOT_AVAILABLE
        message = "Eligible topic partition leaders are not available: another broker takes the partition over."
    return Elected(partition_id=index, error_code=code, error_message=message)
