"""ListOffsets (2), versions 1-7.

Behavior
- -1 is the log end, -2 the log start, -3 the record with the largest timestamp; any other timestamp finds the first
  record at or after it. Nothing found is offset -1, timestamp -1, no error.

Version notes
- 2: isolation level (the same without transactions). 4: leader epochs. 6: flexible. 7: -3 (KIP-734).
"""

from headrace.access.needs import Operation
from headrace.broker.broker import Broker
from headrace.kafka.codec.messages import ListOffsetsRequest, ListOffsetsResponse
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.exchange import Exchange
from headrace.kafka.needs import each_topic, topics
from headrace.kafka.registry import register
from headrace.topics.errors import TopicError

Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = ListOffsetsResponse.ListOffsetsPartitionResponse
_LEAST_SPECIAL = -3


@register(ListOffsetsRequest, 1, 7, needs=(topics(Operation.DESCRIBE, each_topic),))
async def handle(request: ListOffsetsRequest, exchange: Exchange) -> ListOffsetsResponse:
    """Find an offset per partition by time."""
    return ListOffsetsResponse(
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    await _find(exchange.broker, topic.name, asked, exchange.version) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _find(broker: Broker, topic: str, asked: ListOffsetsRequest.ListOffsetsPartition, version: int) -> Partition:
    try:
        partition = broker.topics.partition(topic, asked.partition_index)
        epoch = asked.current_leader_epoch
        if epoch >= 0 and epoch != partition.leader_epoch:
            code = Code.FENCED_LEADER_EPOCH if epoch < partition.leader_epoch else Code.UNKNOWN_LEADER_EPOCH
            raise RequestError(code, f"leader epoch {epoch}, now {partition.leader_epoch}")
        if asked.timestamp < (_LEAST_SPECIAL if version >= 7 else -2):
            raise RequestError(
                Code.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} has no meaning in version {version}"
            )
        found = await broker.find_offset(partition, asked.timestamp)
    except (TopicError, RequestError) as error:
        return Partition(partition_index=asked.partition_index, error_code=code_of(error), timestamp=-1, offset=-1)
    return Partition(
        partition_index=asked.partition_index,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=partition.leader_epoch if found.offset >= 0 else -1,
    )
