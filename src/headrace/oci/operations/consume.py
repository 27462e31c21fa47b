"""ConsumerCommit and ConsumerHeartbeat: what an instance says between two reads."""

from typing import Annotated

import msgspec

from headrace.broker.coordinator.instances import InstanceError
from headrace.oci.api.call import Answer, Call
from headrace.oci.api.group_requests import of_instance_error, read_instance, sign_instance
from headrace.oci.api.registry import operation
from headrace.oci.api.required_acls import group_of_cursor, live_stream
from headrace.oci.operations.create_cursor import Cursor
from headrace.security.access.required_acls import Operation


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
    """Commit what was delivered up to this cursor, and keep the instance's partitions for it.

    400 "Trying to commit unreserved partition ..." when it lost one of them meanwhile; nothing is committed then.
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
    """Keep the instance in its group and its partitions for it. Nothing is committed, no other cursor is spoilt."""
    broker, topic = call.service.stream(call.path["streamId"])
    cursor = read_instance(call.service, topic, call.query.cursor)
    try:
        following = await broker.instances.heartbeat(topic, cursor)
    except InstanceError as error:
        raise of_instance_error(error, by_cursor=True) from None
    return Answer(Cursor(sign_instance(call.service, topic, following)))
