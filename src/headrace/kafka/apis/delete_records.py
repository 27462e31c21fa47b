"""DeleteRecords (21), versions 0-2 (KIP-107).

Behavior
- Offset -1 is the log end offset: all records are deleted. An offset in the middle of a batch hides the records before
  it.
- The log start offset never falls. An offset after the log end offset is OFFSET_OUT_OF_RANGE.

Version notes
- 2: flexible.
"""

from headrace.kafka.denied import topic_named
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import OffsetOutOfRange

Asked = DeleteRecordsRequest.DeleteRecordsPartition
Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = DeleteRecordsResponse.DeleteRecordsPartitionResult
_LOG_END = -1


def _no(asked: Asked, code: Code, _: str | None) -> Partition:
    return Partition(partition_index=asked.partition_index, low_watermark=-1, error_code=code)


@register(
    DeleteRecordsRequest,
    0,
    2,
    needs=(topics(Operation.DELETE, each_topic),),
    each=Each("topics", "topics", _no, topic_named, with_name(Topic)),
    bound=BY_ITSELF,
)
def handle(_: DeleteRecordsRequest, context: RequestContext) -> AnswerItem:
    """Raise the log start offsets."""
    broker = context.broker

    async def delete(topic: DeleteRecordsRequest.DeleteRecordsTopic, asked: Asked) -> Partition:
        place = f"{topic.name}-{asked.partition_index}"
        partition = broker.topics.partition(topic.name, asked.partition_index)
        if asked.offset < _LOG_END:
            raise OffsetOutOfRange(f"{place}: there is no offset {asked.offset}")
        if asked.offset == _LOG_END:
            await partition.ask_end()
        before = partition.log_end if asked.offset == _LOG_END else asked.offset
        log_start = await broker.delete_records(partition, before)
        context.changed(f"records of {place} before {log_start} deleted")
        return Partition(partition_index=asked.partition_index, low_watermark=log_start)

    return delete
