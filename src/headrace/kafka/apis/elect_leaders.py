"""ElectLeaders (43), versions 0-2 (KIP-460).

Behavior
- Brokers agree on leaders by themselves, and the leader is always the preferred replica. So a partition that has a
  leader needs no election (ELECTION_NOT_NEEDED), whichever kind is asked for.
- A partition without one gets it from the broker that takes over, not from a client:
  PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE for an unclean election.
- Null asks for all partitions. As in Kafka every topic is then named, with the partitions that could not be elected.

Version notes
- 1: the election type, and an error code for the whole answer. 2: flexible.
"""

from headrace.broker.partition.partition import Partition
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ElectLeadersRequest, ElectLeadersResponse
from headrace.security.access.required_acls import Operation

PREFERRED, UNCLEAN = 0, 1
_TOPIC_BYTES = 300
"""What a topic takes in an answer about all of them."""

Result = ElectLeadersResponse.ReplicaElectionResult
Elected = ElectLeadersResponse.PartitionResult


def _all(request: ElectLeadersRequest, code: Code, message: str) -> ElectLeadersResponse:
    """The same error for everything that is named."""
    results = [
        Result(
            topic=topic.topic,
            partition_result=[
                Elected(partition_id=index, error_code=code, error_message=message) for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=code, replica_election_results=results)


def _no(request: ElectLeadersRequest, _: RequestContext, no: No) -> ElectLeadersResponse:
    return _all(request, no.code, no.message)


@register(ElectLeadersRequest, 0, 2, needs=(cluster(Operation.ALTER),), refusal=whole(_no))
async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Report that no partition needs another leader."""
    kind = request.election_type
    if kind not in (PREFERRED, UNCLEAN):
        return _all(request, Code.INVALID_REQUEST, f"Unknown election type {kind}")
    await context.broker.topics.leading.current()
    pace = context.pace()
    results: list[Result] = []
    if request.topic_partitions is None:
        topics = context.broker.topics
        await context.reserve(sum(1 for _ in topics) * _TOPIC_BYTES)
        async for live in pace.each(topics.with_internal()):
            failed = [
                _elected(index, partition, kind)
                async for index, partition in pace.each(enumerate(live.partitions))
                if partition.named.node_id < 0
            ]
            results.append(Result(topic=live.topic.name, partition_result=failed))
        return ElectLeadersResponse(replica_election_results=results)
    for topic in request.topic_partitions:
        found = _partitions(context, topic.topic)
        elected = [
            _missing(topic.topic, index, known=found is not None)
            if found is None or not 0 <= index < len(found)
            else _elected(index, found[index], kind)
            async for index in pace.each(topic.partitions)
        ]
        results.append(Result(topic=topic.topic, partition_result=elected))
    return ElectLeadersResponse(replica_election_results=results)


def _partitions(context: RequestContext, topic: str) -> list[Partition] | None:
    topics = context.broker.topics
    return topics.get(topic).partitions if topics.has(topic) else None


def _missing(topic: str, index: int, *, known: bool) -> Elected:
    message = f"No such partition as {topic}-{index}" if known else f"No such topic as {topic}"
    return Elected(partition_id=index, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=message)


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
