"""WriteTxnMarkers (27), versions 1-2 (KIP-98): an administrator ends the transactions of a producer.

Behavior
- Only for administrators, as with `kafka-transactions --abort`. Coordinators of Headrace end transactions otherwise.
- The producer's open transaction in a partition gets the marker. Without one, only the epoch is saved.
- The coordinator epoch of the request is ignored. The marker keeps the number of the producer's last transaction.
- A producer epoch below the known one is INVALID_PRODUCER_EPOCH. A native topic is INVALID_RECORD.

Version notes
- 1: flexible. 2: the version of transactions (KIP-1228), which makes no difference here.
"""

import asyncio
from functools import partial

from headrace.broker.partition.participant import end_transaction
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.protocol.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from headrace.records.markers import UNNUMBERED, Marker
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import InvalidRecord, TopicError

Asked = WriteTxnMarkersRequest.WritableTxnMarker
Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
Partition = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


def _no(request: WriteTxnMarkersRequest, _: RequestContext, no: No) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(markers=[_result(asked, no.code) for asked in request.markers])


def _result(asked: Asked, code: Code) -> Result:
    return Result(
        producer_id=asked.producer_id,
        topics=[
            Topic(
                name=topic.name,
                partitions=[Partition(partition_index=index, error_code=code) for index in topic.partition_indexes],
            )
            for topic in asked.topics
        ],
    )


@register(
    WriteTxnMarkersRequest,
    1,
    2,
    needs=(cluster(Operation.ALTER, instead=(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)),),
    refusal=whole(_no),
    bound=OF_LOGS,
)
async def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> WriteTxnMarkersResponse:
    """End transactions."""
    response = WriteTxnMarkersResponse(markers=[_result(asked, Code.REQUEST_TIMED_OUT) for asked in request.markers])
    waiting: list[asyncio.Future[None]] = []
    for asked, result in zip(request.markers, response.markers, strict=True):
        marker = Marker(asked.producer_id, asked.producer_epoch, asked.transaction_result, UNNUMBERED)
        for topic in result.topics:
            async for answer in context.parts(topic.partitions):
                ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiting.append(ended)
                _end(context, topic.name, marker, answer, ended)
    async for each in context.pace().each(waiting):
        await each
    return response


def _end(context: RequestContext, topic: str, marker: Marker, answer: Partition, ended: "asyncio.Future[None]") -> None:
    try:
        partition = context.broker.topics.partition(topic, answer.partition_index)
        partition.check_led()
        if partition.log is None:
            raise InvalidRecord(f"native topic {topic!r} has no transactions")
    except TopicError as error:
        answer.error_code = code_of(error)
        ended.set_result(None)
        return
    end_transaction(partition.log, marker, partial(_ended, context, topic, marker, answer, ended))


def _ended(
    context: RequestContext,
    topic: str,
    marker: Marker,
    answer: Partition,
    ended: "asyncio.Future[None]",
    error: Exception | None,
) -> None:
    answer.error_code = code_of(error)
    if error is None:
        outcome = "committed" if marker.commit else "aborted"
        context.changed(f"transaction of producer {marker.producer_id} in {topic}-{answer.partition_index} {outcome}")
    if not ended.done():
        ended.set_result(None)
