"""DescribeLogDirs (35), versions 1-5 (KIP-113).

Behavior
- Returns one directory, `redis`: logs are Redis Streams. Total and usable bytes of its volume are unknown, so they are
  -1.
- The size of a partition is that of its record batches. The size of a native partition is the memory of its Redis
  Stream.
- If Redis does not respond, the directory has the error KAFKA_STORAGE_ERROR, as for a failed disk in Kafka.
- Null selects all topics. As in Kafka, partitions that do not exist are omitted.

Version notes
- 2: flexible. 3: an error code for the whole response. 4: bytes of the volume. 5: whether the directory is cordoned
  (KIP-1066). It never is.
"""

from collections.abc import Iterable

from headrace.broker.broker import Broker
from headrace.broker.partition.partition import Partition, sizes_of
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

DIRECTORY = "redis"
_PARTITION_BYTES = 600
"""Memory for one partition while the response is built and sent."""

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Size = DescribeLogDirsResponse.DescribeLogDirsPartition


def _no(_: DescribeLogDirsRequest, __: RequestContext, no: No) -> DescribeLogDirsResponse:
    if no.code == Code.KAFKA_STORAGE_ERROR:
        return _away()
    # Before version 3 an empty list of directories is the only way to report an error.
    return DescribeLogDirsResponse(error_code=no.code)


def _away() -> DescribeLogDirsResponse:
    """Return Kafka's response for a disk that cannot be read."""
    return DescribeLogDirsResponse(
        results=[Directory(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=DIRECTORY, topics=[])]
    )


@register(DescribeLogDirsRequest, 1, 5, needs=(cluster(Operation.DESCRIBE),), refusal=whole(_no), bound=OF_LOGS)
async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> None:
    """Return the sizes of partitions in bytes."""
    broker = context.broker
    await context.turn()
    pace = context.pace()
    chosen = _everything(broker) if request.topics is None else _named(broker, request)
    wanted = [partition async for partition in pace.each(chosen) if partition is not None]
    await context.reserve(len(wanted) * _PARTITION_BYTES)
    try:
        found = await sizes_of(wanted, pace)
    except TopicError:
        await context.answer_in_pieces(_away())
        return
    by_topic: dict[str, list[Size]] = {}
    async for partition, size in pace.each(zip(wanted, found, strict=True)):
        told = Size(partition_index=partition.index, partition_size=size, offset_lag=0, is_future_key=False)
        by_topic.setdefault(partition.topic, []).append(told)
    listed = [Topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]
    await context.answer_in_pieces(
        DescribeLogDirsResponse(results=[Directory(error_code=0, log_dir=DIRECTORY, topics=listed)])
    )


def _everything(broker: Broker) -> Iterable[Partition | None]:
    # A snapshot: topics can change while other tasks run.
    return [partition for live in broker.topics.with_internal() for partition in live.partitions if _here(partition)]


def _named(broker: Broker, request: DescribeLogDirsRequest) -> Iterable[Partition | None]:
    seen: set[tuple[str, int]] = set()
    for topic in request.topics or ():
        for index in topic.partitions:
            if (topic.topic, index) in seen or not broker.topics.has(topic.topic):
                yield None
                continue
            seen.add((topic.topic, index))
            try:
                partition = broker.topics.partition(topic.topic, index)
            except TopicError:
                yield None
            else:
                yield partition if _here(partition) else None


def _here(partition: Partition) -> bool:
    """Return whether this broker must report the partition."""
    return not partition.deleted and partition.leader is None
