"""DescribeQuorum (55), versions 0-2 (KIP-595).

Behavior
- There is no controller quorum: any broker can decide for the cluster, and stores the decision in Redis. The broker
  that responds is the leader and only voter, and other live brokers are observers.
- Offsets are the number of the cluster membership, so no broker lags.
- As in Kafka, any other partition than `__cluster_metadata-0` is UNKNOWN_TOPIC_OR_PARTITION.

Version notes
- 1: timestamps of replicas. 2: error messages, directory ids and the voters' listeners.
"""

from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeQuorumRequest, DescribeQuorumResponse
from headrace.security.access.required_acls import Operation

METADATA_TOPIC = "__cluster_metadata"
_EPOCH = 1
"""There are no elections of controllers, so the epoch is constant."""

Topic = DescribeQuorumResponse.TopicData
Described = DescribeQuorumResponse.PartitionData
Replica = DescribeQuorumResponse.ReplicaState
Node = DescribeQuorumResponse.Node


@register(DescribeQuorumRequest, 0, 2, needs=(cluster(Operation.DESCRIBE),), bound=None)
def handle(request: DescribeQuorumRequest, context: RequestContext) -> None:
    """Describe this broker as the controller."""
    named = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
    if named and named != [(METADATA_TOPIC, 0)]:
        context.answer(_unknown(request))
        return
    if not named:
        context.answer(DescribeQuorumResponse(error_message="", topics=[], nodes=[]))
        return
    broker = context.broker
    now_ms, number = broker.clock.now_ms(), broker.ownership.number or 0

    def state(node_id: int) -> Replica:
        return Replica(
            replica_id=node_id, log_end_offset=number, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
        )

    host, port = context.advertised
    partition = Described(
        partition_index=0,
        error_message="",
        leader_id=broker.node_id,
        leader_epoch=_EPOCH,
        high_watermark=number,
        current_voters=[state(broker.node_id)],
        observers=[state(each.node_id) for each in broker.ownership.others],
    )
    listeners = [DescribeQuorumResponse.Listener(name=context.channel.listener_name.upper(), host=host, port=port)]
    context.answer(
        DescribeQuorumResponse(
            error_message="",
            topics=[Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
            nodes=[Node(node_id=broker.node_id, listeners=listeners)],
        )
    )


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    topics = [
        Topic(
            topic_name=topic.topic_name,
            partitions=[
                Described(
                    partition_index=each.partition_index,
                    error_code=Code.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message="This server does not host this topic-partition.",
                    current_voters=[],
                    observers=[],
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(error_message="", topics=topics, nodes=[])
