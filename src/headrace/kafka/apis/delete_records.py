"""DeleteRecords (21), versions 0-2 (KIP-107).

Behavior
- Offset -1 stands for the log end: everything goes. An offset in the middle of a batch hides the records before it.
- The log start never moves back; beyond the log end is OFFSET_OUT_OF_RANGE.

Version notes
- 2: flexible.
"""

from headrace.kafka.denied import No, parts, topic_named
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import OffsetOutOfRange, TopicError

Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
Partition = DeleteRecordsResponse.DeleteRecordsPartitionResult
_LOG_END = -1


def _no(topic: DeleteRecordsRequest.DeleteRecordsTopic, no: No, _: RequestContext) -> Topic:
    refused = [
        Partition(partition_index=asked.partition_index, low_watermark=-1, error_code=no.code)
        for asked in topic.partitions
    ]
    return Topic(name=topic.name, partitions=refused)


@register(
    DeleteRecordsRequest,
    0,
    2,
    needs=(topics(Operation.DELETE, each_topic),),
    refusal=parts("topics", topic_named, _no, "topics"),
    bound=BY_ITSELF,
)
async def handle(request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
    """Move log starts up."""
    return DeleteRecordsResponse(
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    await _delete(context, topic.name, asked) async for asked in context.parts(topic.partitions)
                ],
            )
            async for topic in context.parts(request.topics)
        ]
    )


async def _delete(context: RequestContext, topic: str, asked: DeleteRecordsRequest.DeleteRecordsPartition) -> Partition:
    broker = context.broker
    try:
        partition = broker.topics.partition(topic, asked.partition_index)
        if asked.offset < _LOG_END:
            raise OffsetOutOfRange(f"{topic}-{asked.partition_index}: there is no offset {asked.offset}")
        if asked.offset == _LOG_END:
            await partition.ask_end()
        before = partition.log_end if asked.offset == _LOG_END else asked.offset
        log_start = await broker.delete_records(partition, before)
    except TopicError as error:
        return Partition(partition_index=asked.partition_index, low_watermark=-1, error_code=code_of(error))
    context.changed(f"records of {topic}-{asked.partition_index} before {log_start} deleted")
    return Partition(partition_index=asked.partition_index, low_watermark=log_start)
