"""CreateGroupCursor: a cursor for an instance of a group; the first one makes the group."""

from datetime import datetime
from typing import Annotated

import msgspec

from headrace.broker.coordinator.instances import InstanceError
from headrace.oci.api.call import Answer, Call
from headrace.oci.api.group_requests import (
    GroupStart,
    check_name,
    new_instance_name,
    of_instance_error,
    sign_instance,
    start_of,
)
from headrace.oci.api.registry import operation
from headrace.oci.api.required_acls import group, live_stream
from headrace.oci.operations.create_cursor import Cursor
from headrace.security.access.required_acls import Operation

TIMEOUT_MS = 30_000
_INT32 = 2**31 - 1


class CreateGroupCursorDetails(msgspec.Struct, rename="camel"):
    """The group, the instance, and where a new group begins."""

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
    repeats=False,  # each time an instance without a name is another one
)
async def create_group_cursor(call: Call) -> Answer:
    """Make a cursor for an instance of a group. The first cursor makes the group and fixes where it begins.

    On a group that exists `type` and `time` are not used: its committed positions rule. An instance without
    `instanceName` gets one. `timeoutInMs` is 30 000 unless given; the service documents 5 000 as the least, less is
    taken too. `commitOnGet` is true unless given.
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
