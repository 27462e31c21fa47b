"""ListOffsets (2), versions 1-8.

Behavior
- -1 is the log end, -2 the log start, in the archive too where records are read from there, -3 the record with the
  largest timestamp, -4 the log start in Redis; any other timestamp finds the first
  record at or after it. Nothing found is offset -1, timestamp -1, no error.
- A partition that is named twice is INVALID_REQUEST, as in Kafka. So much is decompressed for a request at most; what
  is asked for beyond is MESSAGE_TOO_LARGE.

Version notes
- 2: isolation level (the same without transactions). 4: leader epochs. 6: flexible. 7: -3 (KIP-734). 8: -4, the first
  record on the broker itself (KIP-405).
"""

from collections import Counter

from headrace.kafka.denied import No, parts, topic_named
from headrace.kafka.errors import Code, RequestError, check_epoch, code_of
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

Topic = ListOffsetsResponse.ListOffsetsTopicResponse
Partition = ListOffsetsResponse.ListOffsetsPartitionResponse


def _no(topic: ListOffsetsRequest.ListOffsetsTopic, no: No, _: RequestContext) -> Topic:
    refused = [
        Partition(partition_index=asked.partition_index, error_code=no.code, timestamp=-1, offset=-1)
        for asked in topic.partitions
    ]
    return Topic(name=topic.name, partitions=refused)


@register(
    ListOffsetsRequest,
    1,
    8,
    needs=(topics(Operation.DESCRIBE, each_topic),),
    refusal=parts("topics", topic_named, _no, "topics"),
    bound=OF_LOGS,
)
async def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Find an offset per partition by time."""
    search = _Search(context)
    pace = context.pace()
    named: Counter[tuple[str, int]] = Counter()
    async for topic in pace.each(request.topics):
        named.update([(topic.name, asked.partition_index) async for asked in pace.each(topic.partitions)])
    topics_found = []
    for topic in request.topics:
        found = []
        for asked in topic.partitions:
            if pace.over:
                await pace.rest()
            twice = named[topic.name, asked.partition_index] > 1
            found.append(await search.find(topic.name, asked, twice=twice))
        topics_found.append(Topic(name=topic.name, partitions=found))
    return ListOffsetsResponse(topics=topics_found)


class _Search:
    """The search for offsets of one request."""

    def __init__(self, context: RequestContext) -> None:
        self._broker = context.broker
        self._version = context.version
        self._searcher = context.broker.searcher()

    async def find(self, topic: str, asked: ListOffsetsRequest.ListOffsetsPartition, *, twice: bool) -> Partition:
        """The answer for one partition."""
        try:
            if twice:
                raise RequestError(Code.INVALID_REQUEST, "a partition is named more than once")
            return await self._find(topic, asked)
        except (TopicError, RequestError) as error:
            return Partition(partition_index=asked.partition_index, error_code=code_of(error), timestamp=-1, offset=-1)

    async def _find(self, topic: str, asked: ListOffsetsRequest.ListOffsetsPartition) -> Partition:
        partition = self._broker.topics.partition(topic, asked.partition_index)
        partition.check_led()
        check_epoch(partition.leader_epoch, asked.current_leader_epoch)
        timestamp = asked.timestamp
        if timestamp < -2 - (self._version >= 7) - (self._version >= 8):
            raise RequestError(
                Code.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} has no meaning in version {self._version}"
            )
        found = await self._broker.find_offset(partition, timestamp, self._searcher)
        return Partition(
            partition_index=asked.partition_index,
            timestamp=found.timestamp,
            offset=found.offset,
            leader_epoch=partition.leader_epoch if found.offset >= 0 else -1,
        )
