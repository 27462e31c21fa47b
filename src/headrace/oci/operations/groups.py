"""GetGroup and UpdateGroup: a group as a whole."""

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
    """A partition, and who holds it."""

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
    """Where the group goes on."""

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
    """Show every partition of the stream with its committed offset, and which instance holds it until when.

    `committedOffset` is the last offset committed, -1 when there is none; with `oci.committed.offset=next` it is the
    next one to read.
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
    """Set the whole group to another place. Cursors that instances hold go on from there with their next get."""
    details: UpdateGroupDetails = call.body
    broker, topic = call.service.stream(call.path["streamId"])
    name = check_name(call.path["groupName"], "groupName")
    start = start_of(details.type, details.time)
    try:
        await broker.instances.update(topic, name, start)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=False) from None
    return Answer()
