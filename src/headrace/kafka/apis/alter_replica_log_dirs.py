"""AlterReplicaLogDirs (34), versions 1-2 (KIP-113).

Behavior
- The only log directory is `redis` (DescribeLogDirs). A move to it changes nothing. It is accepted for replicas on this
  broker, and is NOT_LEADER_OR_FOLLOWER for others. Another directory is LOG_DIR_NOT_FOUND.

Version notes
- 2: flexible.
"""

from collections.abc import Iterator

from headrace.broker.broker import Broker
from headrace.kafka.apis.describe_log_dirs import DIRECTORY
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from headrace.security.access.required_acls import Operation

Result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


def _named(request: AlterReplicaLogDirsRequest) -> Iterator[tuple[str, str, int]]:
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                yield directory.path, topic.name, index


def _no(request: AlterReplicaLogDirsRequest, _: RequestContext, no: No) -> AlterReplicaLogDirsResponse:
    return _answer({(topic, index): no.code for _, topic, index in _named(request)})


@register(AlterReplicaLogDirsRequest, 1, 2, needs=(cluster(Operation.ALTER),), refusal=whole(_no))
async def handle(request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
    """Accept moves to the only directory."""
    broker = context.broker
    # As in Kafka, a partition has one result. The last directory counts.
    named = {(topic, index): path async for path, topic, index in context.pace().each(_named(request))}
    return _answer({(topic, index): _moved(broker, path, topic, index) for (topic, index), path in named.items()})


def _moved(broker: Broker, path: str, topic: str, index: int) -> Code:
    if path != DIRECTORY:
        return Code.LOG_DIR_NOT_FOUND
    if not broker.topics.has(topic) or not 0 <= index < len(broker.topics.get(topic).partitions):
        return Code.UNKNOWN_TOPIC_OR_PARTITION
    live = broker.topics.get(topic)
    has = live.partitions[index].leader is None or broker.node_id in live.replicas(broker.ownership, index)
    return Code.NONE if has else Code.NOT_LEADER_OR_FOLLOWER


def _answer(codes: dict[tuple[str, int], Code]) -> AlterReplicaLogDirsResponse:
    by_topic: dict[str, list[Moved]] = {}
    for (topic, index), code in codes.items():
        by_topic.setdefault(topic, []).append(Moved(partition_index=index, error_code=code))
    return AlterReplicaLogDirsResponse(
        results=[Result(topic_name=topic, partitions=partitions) for topic, partitions in by_topic.items()]
    )
