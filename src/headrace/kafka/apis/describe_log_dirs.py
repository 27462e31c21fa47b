"""DescribeLogDirs (35), versions 1-5 (KIP-113).

Behavior
- One directory, `redis`: the logs lie in Redis Streams, wherever it has its files. Its volume is not known: total and
  usable bytes are -1.
- The size of a partition is that of its record batches; of a native topic, the memory that Redis says its stream takes.
- Where Redis does not answer, the directory is KAFKA_STORAGE_ERROR, as Kafka tells of a disk that is gone.
- Null asks for every topic. Partitions that are not there are left out of the answer, as Kafka does.

Version notes
- 2: flexible. 3: an error code for the whole answer. 4: bytes of the volume. 5: whether new partitions keep away from
  the directory (KIP-1066): never.
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
"""What a partition takes while it is asked for and the answer is made, and then in the answer."""

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Size = DescribeLogDirsResponse.DescribeLogDirsPartition


def _no(_: DescribeLogDirsRequest, __: RequestContext, no: No) -> DescribeLogDirsResponse:
    if no.code == Code.KAFKA_STORAGE_ERROR:
        return _away()
    # Before version 3 there is no other way to say so than to tell of no directory.
    return DescribeLogDirsResponse(error_code=no.code)


def _away() -> DescribeLogDirsResponse:
    """As Kafka tells of a disk that is not to be read."""
    return DescribeLogDirsResponse(
        results=[Directory(error_code=Code.KAFKA_STORAGE_ERROR, log_dir=DIRECTORY, topics=[])]
    )


@register(DescribeLogDirsRequest, 1, 5, needs=(cluster(Operation.DESCRIBE),), refusal=whole(_no), bound=OF_LOGS)
async def handle(request: DescribeLogDirsRequest, context: RequestContext) -> None:
    """Tell how many bytes partitions hold."""
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
    # A list of now: topics come and go while others have their turn.
    return [partition for live in broker.topics.with_internal() for partition in live.partitions if _here(partition)]


def _named(broker: Broker, request: DescribeLogDirsRequest) -> Iterable[Partition | None]:
    """The partitions that are there, each once however often it is named; None for what is passed over."""
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
    """Whether it is there, and no other broker's to tell of."""
    return not partition.deleted and partition.leader is None
