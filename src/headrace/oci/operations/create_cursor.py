"""CreateCursor: a place in one partition from which a single reader goes on."""

from datetime import datetime
from enum import Enum

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import Source
from headrace.broker.topics.live import LiveTopic
from headrace.oci.api.call import Answer, Call
from headrace.oci.api.group_requests import ms_of
from headrace.oci.api.registry import operation
from headrace.oci.api.required_acls import live_stream
from headrace.oci.cursors import PartitionCursor
from headrace.oci.errors import OciError, invalid
from headrace.security.access.required_acls import Operation


class CursorType(Enum):
    """Where a reader begins."""

    AFTER_OFFSET = "AFTER_OFFSET"
    AT_OFFSET = "AT_OFFSET"
    AT_TIME = "AT_TIME"
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"


class CreateCursorDetails(msgspec.Struct, rename="camel"):
    """The place."""

    partition: str
    type: CursorType
    offset: int | None = None
    time: datetime | None = None


class Cursor(msgspec.Struct):
    """A cursor."""

    value: str


@operation(
    "CreateCursor",
    "POST",
    "/streams/{streamId}/cursors",
    client="StreamClient",
    needs=(live_stream(Operation.READ),),
    body=CreateCursorDetails,
    answer=Cursor,
)
async def create_cursor(call: Call) -> Answer:
    """Make a cursor for one partition, good for five minutes (`oci.cursor.expiry.ms`).

    AT_OFFSET and AFTER_OFFSET take an offset between the oldest and the latest message there is. AT_TIME may lie in
    the future: messages from then on are read.
    """
    details: CreateCursorDetails = call.body
    broker, topic = call.service.stream(call.path["streamId"])
    partition = await broker.source(_partition(topic, details.partition), details.offset or 0)
    # Before the place is looked up: should the log be opened anew meanwhile, the place may be in what it was.
    epoch = partition.leader_epoch
    offset, not_before_ms = await _place(broker, partition, details)
    cursor = PartitionCursor(
        topic.topic.id.bytes, call.service.cursor_expiry_ms(), partition.index, offset, not_before_ms, epoch
    )
    return Answer(Cursor(call.service.signer.sign(cursor)))


def _partition(topic: LiveTopic, text: str) -> Partition:
    if text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < len(topic.partitions):
        return topic.partitions[int(text)]
    raise invalid(
        f"Invalid field partition: {text!r} is none of the stream's partitions 0 to {len(topic.partitions) - 1}"
    )


async def _place(broker: Broker, partition: Source, details: CreateCursorDetails) -> tuple[int, int | None]:
    """The next offset to read, and the time to wait for when AT_TIME found nothing."""
    kind = details.type
    if kind is CursorType.TRIM_HORIZON:
        return partition.log_start, None
    if kind is CursorType.LATEST:
        await partition.ask_end()
        return partition.log_end, None
    if kind is CursorType.AT_TIME:
        if details.time is None:
            raise OciError(400, "Missing field time, which AT_TIME needs", "MissingParameter")
        time_ms = ms_of(details.time)
        before = partition.log_end
        found = await broker.find_offset(partition, max(time_ms, 0))
        # A record that Redis has and has not yet acknowledged is not there for readers.
        return (found.offset, None) if 0 <= found.offset < partition.log_end else (before, time_ms)
    if details.offset is None:
        raise OciError(400, f"Missing field offset, which {kind.value} needs", "MissingParameter")
    if details.offset >= partition.log_end:
        await partition.ask_end()
    if not partition.log_start <= details.offset < partition.log_end:
        raise invalid(
            f"Invalid field offset: {details.offset} is not between the oldest message, {partition.log_start}, "
            f"and the latest, {partition.log_end - 1}"
            if partition.log_start < partition.log_end
            else "Invalid field offset: the partition has no messages"
        )
    return details.offset + (kind is CursorType.AFTER_OFFSET), None
