"""Cursors of partitions and of group instances."""

from datetime import datetime
from enum import Enum
from typing import Annotated

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.coordinator.instances import ISOLATION, InstanceError
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import Source
from headrace.broker.topics.live import LiveTopic
from headrace.oci.api.group_requests import (
    GroupStart,
    check_name,
    ms_of,
    new_instance_name,
    of_instance_error,
    read_instance,
    sign_instance,
    start_of,
)
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import group, group_of_cursor, live_stream
from headrace.oci.cursors import PartitionCursor
from headrace.oci.errors import OciError, invalid
from headrace.security.access.required_acls import Operation


class CursorType(Enum):
    """The start position of a cursor."""

    AFTER_OFFSET = "AFTER_OFFSET"
    AT_OFFSET = "AT_OFFSET"
    AT_TIME = "AT_TIME"
    LATEST = "LATEST"
    TRIM_HORIZON = "TRIM_HORIZON"


class CreateCursorDetails(msgspec.Struct, rename="camel"):
    """The position."""

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
    """Create a cursor for one partition. It is valid for five minutes (`oci.cursor.expiry.ms`).

    AT_OFFSET and AFTER_OFFSET require the offset of an existing message. AT_TIME may be in the future: the cursor then
    reads messages from that time on.
    """
    details: CreateCursorDetails = call.body
    broker, topic = call.service.stream(call.path["streamId"])
    partition = await broker.source(_partition(topic, details.partition), details.offset or 0)
    # Before the offset, because the log may recover in between.
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
    kind = details.type
    if kind is CursorType.TRIM_HORIZON:
        return partition.log_start, None
    if kind is CursorType.LATEST:
        await partition.ask_end()
        return partition.visible_end(ISOLATION), None
    if kind is CursorType.AT_TIME:
        if details.time is None:
            raise OciError(400, "Missing field time, which AT_TIME needs", "MissingParameter")
        time_ms = ms_of(details.time)
        before = partition.visible_end(ISOLATION)
        found = await broker.find_offset(partition, max(time_ms, 0), isolation=ISOLATION)
        # Records that Redis has not acknowledged are not readable.
        seen = 0 <= found.offset < partition.visible_end(ISOLATION)
        return (found.offset, None) if seen else (before, time_ms)
    if details.offset is None:
        raise OciError(400, f"Missing field offset, which {kind.value} needs", "MissingParameter")
    if details.offset >= partition.visible_end(ISOLATION):
        await partition.ask_end()
    end = partition.visible_end(ISOLATION)
    if not partition.log_start <= details.offset < end:
        raise invalid(
            f"Invalid field offset: {details.offset} is not between the oldest message, {partition.log_start}, "
            f"and the latest, {end - 1}"
            if partition.log_start < end
            else "Invalid field offset: the partition has no messages"
        )
    return details.offset + (kind is CursorType.AFTER_OFFSET), None


TIMEOUT_MS = 30_000
_INT32 = 2**31 - 1


class CreateGroupCursorDetails(msgspec.Struct, rename="camel"):
    """The group, the instance, and the start position of a new group."""

    type: GroupStart
    group_name: str
    time: datetime | None = None
    instance_name: str | None = None
    timeout_in_ms: Annotated[int, msgspec.Meta(ge=1, le=_INT32)] | None = None
    commit_on_get: bool | None = None


@operation(
    "CreateGroupCursor",
    "POST",
    "/streams/{streamId}/groupCursors",
    client="StreamClient",
    needs=(live_stream(Operation.READ), group(Operation.READ, lambda call: call.body.group_name)),
    body=CreateGroupCursorDetails,
    answer=Cursor,
    repeats=False,  # a repetition would create another unnamed instance
)
async def create_group_cursor(call: Call) -> Answer:
    """Create a cursor for an instance of a group. The first cursor creates the group at the start position.

    An existing group ignores `type` and `time` and continues at its committed offsets. Without `instanceName` the
    server chooses a name. `timeoutInMs` is 30,000 by default. The service documents a minimum of 5,000, but smaller
    values are accepted here. `commitOnGet` is true by default.
    """
    details: CreateGroupCursorDetails = call.body
    broker, topic = call.service.stream(call.path["streamId"])
    group = check_name(details.group_name, "field groupName")
    instance = details.instance_name
    instance = new_instance_name() if instance is None else check_name(instance, "field instanceName")
    start = start_of(details.type, details.time)
    timeout_ms = TIMEOUT_MS if details.timeout_in_ms is None else details.timeout_in_ms
    try:
        cursor = await broker.instances.create_cursor(
            topic, group, instance, start, timeout_ms, details.commit_on_get is not False
        )
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=False) from None
    return Answer(Cursor(sign_instance(call.service, topic, cursor)))


class CursorQuery(msgspec.Struct, rename="camel"):
    """An instance's cursor."""

    cursor: Annotated[str, msgspec.Meta(description="A group's cursor, at most 1024 characters.")]


@operation(
    "ConsumerCommit",
    "POST",
    "/streams/{streamId}/commit",
    client="StreamClient",
    needs=(live_stream(Operation.READ), group_of_cursor()),
    query=CursorQuery,
    answer=Cursor,
)
async def consumer_commit(call: Call) -> Answer:
    """Commit the messages delivered up to this cursor, and renew the instance's reservations.

    If the instance has lost one of these partitions, the response is 400 "Trying to commit unreserved partition ...",
    and nothing is committed.
    """
    broker, topic = call.service.stream(call.path["streamId"])
    cursor = read_instance(call.service, topic, call.query.cursor)
    try:
        following = await broker.instances.commit(topic, cursor)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=True) from None
    return Answer(Cursor(sign_instance(call.service, topic, following)))


@operation(
    "ConsumerHeartbeat",
    "POST",
    "/streams/{streamId}/heartbeat",
    client="StreamClient",
    needs=(live_stream(Operation.READ), group_of_cursor()),
    query=CursorQuery,
    answer=Cursor,
)
async def consumer_heartbeat(call: Call) -> Answer:
    """Renew the instance's membership and reservations. Nothing is committed, and other cursors stay valid."""
    broker, topic = call.service.stream(call.path["streamId"])
    cursor = read_instance(call.service, topic, call.query.cursor)
    try:
        following = await broker.instances.heartbeat(topic, cursor)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=True) from None
    return Answer(Cursor(sign_instance(call.service, topic, following)))
