"""GetGroup and UpdateGroup."""

from datetime import datetime

import msgspec

from headrace.broker.coordinator.instances import InstanceError, Reservation
from headrace.oci.api.group_requests import GroupStart, check_name, of_instance_error, start_of
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import group, live_stream
from headrace.records.fallback.messages import time_text
from headrace.security.access.required_acls import Operation

NOTHING_COMMITTED = -1


class PartitionReservation(msgspec.Struct, rename="camel", omit_defaults=True):
    """A partition and the instance that has reserved it."""

    partition: str
    committed_offset: int
    reserved_instance: str | None = None
    time_reserved_until: str | None = None


class Group(msgspec.Struct, rename="camel"):
    """A group."""

    stream_id: str
    group_name: str
    reservations: list[PartitionReservation]


class UpdateGroupDetails(msgspec.Struct, rename="camel"):
    """The new start position."""

    type: GroupStart
    time: datetime | None = None


def _name(call: Call) -> str:
    return call.path["groupName"]


@operation(
    "GetGroup",
    "GET",
    "/streams/{streamId}/groups/{groupName:rest}",
    client="StreamClient",
    needs=(live_stream(Operation.DESCRIBE), group(Operation.DESCRIBE, _name)),
    answer=Group,
)
async def get_group(call: Call) -> Answer:
    """List a group's committed offsets, and the instance that has reserved each partition until a time.

    `committedOffset` is the last committed offset, or -1 before the first commit. With `oci.committed.offset=next` it
    is the next offset to read.
    """
    stream_id = call.path["streamId"]
    broker, topic = call.service.stream(stream_id)
    name = check_name(call.path["groupName"], "groupName")
    shown = call.service.settings.committed_offset
    try:
        await broker.instances.ready(name)
        async with call.listing() as pace:
            reservations = broker.instances.reservations(topic, name)
            told = [_reservation(each, shown) async for each in pace.each(reservations)]
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=False) from None
    return Answer(Group(stream_id, name, told))


def _reservation(found: Reservation, shown: str) -> PartitionReservation:
    offset = NOTHING_COMMITTED
    if found.committed is not None:
        offset = found.committed if shown == "next" else found.committed - 1
    until = found.reserved_until_ms
    return PartitionReservation(
        str(found.partition), offset, found.instance, None if until is None else time_text(until)
    )


@operation(
    "UpdateGroup",
    "PUT",
    "/streams/{streamId}/groups/{groupName:rest}",
    client="StreamClient",
    needs=(live_stream(Operation.READ), group(Operation.READ, _name)),
    body=UpdateGroupDetails,
)
async def update_group(call: Call) -> Answer:
    """Set a group to another position. Its instances continue there with their next GetMessages."""
    details: UpdateGroupDetails = call.body
    broker, topic = call.service.stream(call.path["streamId"])
    name = check_name(call.path["groupName"], "groupName")
    start = start_of(details.type, details.time)
    try:
        await broker.instances.update(topic, name, start)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=False) from None
    return Answer()
