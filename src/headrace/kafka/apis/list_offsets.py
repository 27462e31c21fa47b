"""ListOffsets (2), versions 1-11.

Behavior
- Timestamp -1 is the log end offset for the isolation level. Later records are not searched.
- Timestamp -2 is the log start offset, including the archive if the topic reads it. -4 is the log start offset in
  Redis. -5 is the last record in the archive, and -6 the first one that is not. Both are -1 if the topic does not read
  an archive.
- Timestamp -3 is the record with the largest timestamp. Any other value finds the first record at or after it.
- If there is no such record, offset and timestamp are -1, without an error.
- As in Kafka, a partition that is named twice is INVALID_REQUEST. A request that needs too much decompression is
  MESSAGE_TOO_LARGE for the remaining partitions.

Version notes
- 2: isolation level. 4: leader epochs. 6: flexible. 7: -3 (KIP-734). 8: -4, the first record on the broker (KIP-405).
- 9: -5 (KIP-1005). 10: the client's timeout (KIP-1075). 11: -6 (KIP-1023).
"""

from headrace.broker.partition.source import Isolation
from headrace.broker.partition.timestamps import Special
from headrace.kafka.denied import topic_named
from headrace.kafka.errors import Code, RequestError, check_epoch
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_OFFSETS
from headrace.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from headrace.security.access.required_acls import Operation

Asked = ListOffsetsRequest.ListOffsetsPartition
Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = ListOffsetsResponse.ListOffsetsPartitionResponse

_ANOTHER_FROM = (7, 8, 9, 11)
"""Versions with one more special timestamp each."""


def _no(asked: Asked, code: Code, _: str | None) -> Partition:
    return Partition(partition_index=asked.partition_index, error_code=code, timestamp=-1, offset=-1)


@register(
    ListOffsetsRequest,
    1,
    11,
    needs=(topics(Operation.DESCRIBE, each_topic),),
    each=Each(
        "topics",
        "topics",
        _no,
        topic_named,
        with_name(Topic),
        key=lambda topic, asked: (topic.name, asked.partition_index),
        twice="a partition is named more than once",
    ),
    bound=OF_OFFSETS,
)
def handle(request: ListOffsetsRequest, context: RequestContext) -> AnswerItem:
    """Find offsets by timestamp."""
    broker, version = context.broker, context.version
    searcher, isolation = broker.searcher(), Isolation.of(request.isolation_level)
    lowest = Special.EARLIEST - sum(version >= each for each in _ANOTHER_FROM)

    async def find(topic: ListOffsetsRequest.ListOffsetsTopic, asked: Asked) -> Partition:
        partition = broker.topics.partition(topic.name, asked.partition_index)
        partition.check_led()
        check_epoch(partition.leader_epoch, asked.current_leader_epoch)
        if asked.timestamp < lowest:
            raise RequestError(
                Code.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} has no meaning in version {version}"
            )
        found = await broker.find_offset(partition, asked.timestamp, searcher, isolation)
        return Partition(
            partition_index=asked.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=partition.leader_epoch if found.offset >= 0 else -1,
        )

    return find
