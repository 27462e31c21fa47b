"""GetMessages."""

from typing import Annotated

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.coordinator.instances import ISOLATION, InstanceError
from headrace.broker.partition.read import read
from headrace.broker.partition.source import Source
from headrace.broker.topics.live import LiveTopic
from headrace.oci.api.group_requests import of_instance_error, sign_instance
from headrace.oci.api.message_writer import MessageSink
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import group_of_cursor, live_stream
from headrace.oci.cursors import InstanceCursor, PartitionCursor, most_offsets
from headrace.oci.errors import CURSOR_BEHIND, CURSOR_INVALID, invalid
from headrace.security.access.required_acls import Operation

MOST_MESSAGES = 10_000
_AROUND_MESSAGE = 140
"""Bytes of a message in JSON in addition to its key, its value and the stream's name."""


class GetMessagesQuery(msgspec.Struct, rename="camel"):
    """The cursor and limit."""

    cursor: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_MESSAGES)] | None = None


class Message(msgspec.Struct, rename="camel"):
    """A message. Without a key, `key` is null. A Kafka record without a value has an empty `value`."""

    stream: str
    partition: str
    key: str | None
    value: str
    offset: int
    timestamp: str


@operation(
    "GetMessages",
    "GET",
    "/streams/{streamId}/messages",
    client="StreamClient",
    needs=(live_stream(Operation.READ), group_of_cursor()),
    query=GetMessagesQuery,
    answer=list[Message],
    answer_headers=("opc-next-cursor",),
    fetches=True,
)
async def get_messages(call: Call) -> Answer:
    """Read messages from a cursor. Continue with `opc-next-cursor`, even after an empty response.

    `oci.get.bytes` and `limit` bound the response. It has at least one message if one exists, unless more than 64 MiB
    of aborted transactions come first. With a group's cursor, the request commits the messages of the previous response
    (`commitOnGet`), and reads the partitions that the instance has reserved now.

    Records from Kafka producers are messages, too. The timestamp is the record's: the producer's, or the server's if
    the topic has `message.timestamp.type=LogAppendTime`. Headers are omitted, because a message has no field for them.
    A record without a value (a tombstone) has an empty `value`, because the field is required. Kafka clients can
    distinguish the two.

    Unreadable records, records of more than 16 MiB, and batches that decompress to more than 128 MiB are skipped and
    logged.
    """
    query: GetMessagesQuery = call.query
    service = call.service
    broker, topic = service.stream(call.path["streamId"])
    cursor = service.read_cursor(topic, query.cursor)
    if service.limits is not None:
        reader = cursor.partition if isinstance(cursor, PartitionCursor) else (cursor.group, cursor.instance)
        service.limits.read(cursor.stream, reader, service.clock.ticks_ms())
    name = topic.topic.name
    count, size = query.limit or MOST_MESSAGES, service.settings.get_bytes
    # For the batches and their JSON. If memory is short, the response is smaller.
    wanted = size + size * 4 // 3 + count * (_AROUND_MESSAGE + len(name))
    granted = await broker.reads.acquire(wanted)
    try:
        share = min(granted, wanted)
        most = max(1, count * share // wanted), max(1, size * share // wanted)
        sink = MessageSink(name, *most, service.decompression, topic.tracer)
        if isinstance(cursor, PartitionCursor):
            following = await _read_partition(call, broker, topic, cursor, sink)
        else:
            following = await _read_group(call, broker, topic, cursor, sink)
        topic.counted.records_out += sink.count
        topic.counted.bytes_out += sink.size
        content = sink.answer()
    finally:
        # The sender reserves memory until the response has left.
        broker.reads.release(granted)
    return Answer(content, {"opc-next-cursor": following})


async def _read_group(call: Call, broker: Broker, topic: LiveTopic, cursor: InstanceCursor, sink: MessageSink) -> str:
    most = most_offsets(cursor.group, cursor.instance, len(topic.partitions))
    try:
        following = await broker.instances.get(topic, cursor.cursor(), sink, most)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=True) from None
    return sign_instance(call.service, topic, following)


async def _read_partition(
    call: Call, broker: Broker, topic: LiveTopic, cursor: PartitionCursor, sink: MessageSink
) -> str:
    if cursor.partition >= len(topic.partitions):
        raise invalid(CURSOR_INVALID)
    partition = await broker.source(topic.partitions[cursor.partition], cursor.offset)
    # Before the records, because the log may recover in between.
    epoch = partition.leader_epoch
    # After data loss in Redis, new records reuse offsets. Skip none of them.
    reached = partition.kept(cursor.offset, cursor.leader_epoch)
    offset, not_before_ms = await _start(broker, partition, reached, cursor.not_before_ms)
    if offset < partition.log_start:
        raise invalid(CURSOR_BEHIND)
    if partition.certainly_past_end(offset):
        raise invalid(CURSOR_INVALID)
    if not_before_ms is None:
        offset = await read(partition, offset, sink, large_reads=broker.large_reads, isolation=ISOLATION)
    expires_ms = call.service.cursor_expiry_ms()
    following = PartitionCursor(cursor.stream, expires_ms, cursor.partition, offset, not_before_ms, epoch)
    return call.service.signer.sign(following)


async def _start(broker: Broker, partition: Source, offset: int, not_before_ms: int | None) -> tuple[int, int | None]:
    if not_before_ms is None:
        return offset, None
    before = max(partition.visible_end(ISOLATION), offset)
    found = await broker.find_offset(partition, max(not_before_ms, 0), isolation=ISOLATION)
    if not 0 <= found.offset < partition.visible_end(ISOLATION):
        # Records before this offset are too early.
        return before, not_before_ms
    return max(found.offset, offset), None
