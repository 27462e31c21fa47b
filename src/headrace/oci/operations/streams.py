"""Streams."""

from typing import Annotated

import msgspec
from msgspec.structs import asdict

from headrace.oci import ocids
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import moved_stream, new_topic, stream, streams_shown
from headrace.oci.api.resource_responses import (
    CHANGE_HEADERS,
    LIST_HEADERS,
    ChangeCompartmentDetails,
    DefinedTags,
    FreeformTags,
    IfMatch,
    ListQuery,
    Name,
    Ocid,
    changed,
    given,
    is_in,
    messages_endpoint,
    shown_compartment,
    wanted,
)
from headrace.oci.errors import OciError, invalid
from headrace.oci.resources.records import PoolRecord, StreamRecord, is_deleted
from headrace.records.fallback.messages import time_text
from headrace.security.access.required_acls import Operation, Resource, ResourceType

_MOST_DIGITS = 9


class StreamSummary(msgspec.Struct, rename="camel"):
    """A stream in a list."""

    name: str
    id: str
    partitions: int
    compartment_id: str
    stream_pool_id: str
    lifecycle_state: str
    time_created: str
    messages_endpoint: str
    freeform_tags: FreeformTags
    defined_tags: DefinedTags


class Stream(StreamSummary, rename="camel"):
    """A stream. `retentionInHours` is -1 for a Kafka topic with unlimited retention."""

    retention_in_hours: int
    lifecycle_state_details: str | None = None


class CreateStreamDetails(msgspec.Struct, rename="camel"):
    """The new stream, in a pool or in a compartment's default pool."""

    name: Name
    partitions: (
        Annotated[int, msgspec.Meta(ge=1)] | Annotated[str, msgspec.Meta(pattern=f"^[0-9]{{1,{_MOST_DIGITS}}}$")]
    )
    compartment_id: Ocid | None = None
    stream_pool_id: Ocid | None = None
    retention_in_hours: Annotated[int, msgspec.Meta(ge=24, le=168)] | None = None
    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None


class UpdateStreamDetails(msgspec.Struct, rename="camel"):
    """The fields to change."""

    stream_pool_id: Ocid | None = None
    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None


class ListStreamsQuery(ListQuery, rename="camel"):
    """A compartment or a pool."""

    compartment_id: Ocid | None = None
    stream_pool_id: Ocid | None = None


_Place = tuple[str, PoolRecord | None]


def _wanted(call: Call) -> _Place:
    details: CreateStreamDetails = call.body
    pools = call.service.catalog.pools
    if details.stream_pool_id is not None:
        return details.name, pools.get(details.stream_pool_id)
    return details.name, pools.known_default_of(details.compartment_id or "")


def _moved(call: Call) -> _Place | None:
    pool_id = call.body.stream_pool_id
    return None if pool_id is None else (_record(call).name, call.service.catalog.pools.get(pool_id))


_MOVING = tuple(
    # A move makes messages readable in the new pool and deletes them from the old one.
    moved_stream(operation, lambda call: call.body.stream_pool_id is not None, "to another pool")
    for operation in (Operation.READ, Operation.DELETE)
)


def _moved_to_compartment(call: Call) -> _Place:
    return _record(call).name, call.service.catalog.pools.known_default_of(call.body.compartment_id)


def _record(call: Call) -> StreamRecord:
    return call.service.catalog.streams.get(call.path["streamId"])


@operation(
    "CreateStream",
    "POST",
    "/streams",
    needs=new_topic(_wanted),
    mutated=lambda call: int(call.body.partitions),
    body=CreateStreamDetails,
    answer=Stream,
    answer_headers=CHANGE_HEADERS,
)
async def create_stream(call: Call) -> Answer:
    """Create a stream: a topic of its pool. It is ACTIVE immediately, unless `oci.lifecycle.delay.ms` is set."""
    details: CreateStreamDetails = call.body
    _one_of(details.compartment_id, details.stream_pool_id, "field")
    partitions = int(details.partitions)
    if partitions < 1:
        raise invalid("Invalid field partitions: at least one is needed")
    record, request = await call.service.catalog.create_stream(
        details.name,
        partitions,
        details.retention_in_hours or 24,
        compartment=details.compartment_id,
        pool_id=details.stream_pool_id,
        freeform_tags=details.freeform_tags or {},
        defined_tags=details.defined_tags or {},
    )
    return changed(call, request, record, _stream(call, record))


def _one_of(compartment: str | None, pool: str | None, what: str) -> None:
    if compartment is None and pool is None:
        raise OciError(400, f"Missing {what} compartmentId or streamPoolId", "MissingParameter")
    if compartment is not None and pool is not None:
        raise invalid(f"Invalid {what} streamPoolId: it cannot be given together with compartmentId")


@operation(
    "GetStream",
    "GET",
    "/streams/{streamId}",
    needs=(stream(Operation.DESCRIBE),),
    answer=Stream,
    answer_headers=("etag",),
)
async def get_stream(call: Call) -> Answer:
    """Return a stream. A deleted one is returned as DELETED for 90 days."""
    record = _record(call)
    return Answer(_stream(call, record), {"etag": record.etag})


_SHOWN = streams_shown()


def _may_see(call: Call, record: StreamRecord) -> bool:
    cluster = call.service.catalog.pools.cluster_name(record.pool)
    return call.may(_SHOWN, Resource(ResourceType.TOPIC, record.name, cluster))


@operation(
    "ListStreams",
    "GET",
    "/streams",
    needs=(_SHOWN,),
    query=ListStreamsQuery,
    answer=list[StreamSummary],
    answer_headers=LIST_HEADERS,
)
async def list_streams(call: Call) -> Answer:
    """List the streams of a compartment or of a pool, including topics created through Kafka.

    The list includes deleted streams, except those that belonged to every compartment.
    """
    query: ListStreamsQuery = call.query
    _one_of(query.compartment_id, query.stream_pool_id, "query parameter")
    catalog = call.service.catalog
    asked = query.compartment_id
    pool = "" if asked is not None else ocids.unique_of(query.stream_pool_id or "", ocids.STREAM_POOL)
    async with call.listing() as pace:
        records = [
            each
            async for each in pace.each(catalog.streams.each())
            if each is not None
            and (each.pool == pool if asked is None else _is_listed(call, each, asked))
            and (not call.authorizes or _may_see(call, each))
        ]
        page = wanted(call, records, query, lambda record: catalog.streams.ocid(record.id))
    return Answer([_summary(call, record, asked) for record in page.items], page.headers)


def _is_listed(call: Call, record: StreamRecord, compartment: str) -> bool:
    # Deleted streams of every compartment would be in all lists for 90 days.
    return is_in(call, record.compartment, compartment) and bool(record.compartment or not is_deleted(record))


@operation(
    "UpdateStream",
    "PUT",
    "/streams/{streamId}",
    needs=(stream(Operation.ALTER), *_MOVING, *new_topic(_moved)),
    headers=IfMatch,
    body=UpdateStreamDetails,
    answer=Stream,
    answer_headers=CHANGE_HEADERS,
)
async def update_stream(call: Call) -> Answer:
    """Change a stream's tags, or move it to another pool.

    A move keeps the messages, but not the committed offsets of groups.
    """
    details: UpdateStreamDetails = call.body
    fields = given(freeform_tags=details.freeform_tags, defined_tags=details.defined_tags)
    record, request = await call.service.catalog.update_stream(
        call.path["streamId"], call.headers.if_match, details.stream_pool_id, fields
    )
    return changed(call, request, record, _stream(call, record))


def _partitions(call: Call) -> int:
    return call.service.catalog.streams.get(call.path["streamId"]).partitions


@operation(
    "DeleteStream",
    "DELETE",
    "/streams/{streamId}",
    needs=(stream(Operation.DELETE),),
    mutated=_partitions,
    headers=IfMatch,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def delete_stream(call: Call) -> Answer:
    """Delete a stream and its messages, immediately and also for Kafka clients."""
    request = await call.service.catalog.delete_stream(call.path["streamId"], call.headers.if_match)
    return changed(call, request)


@operation(
    "ChangeStreamCompartment",
    "POST",
    "/streams/{streamId}/actions/changeCompartment",
    needs=(
        stream(Operation.ALTER),
        moved_stream(Operation.READ, lambda _: True),
        moved_stream(Operation.DELETE, lambda _: True),
        *new_topic(_moved_to_compartment),
    ),
    headers=IfMatch,
    body=ChangeCompartmentDetails,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def change_stream_compartment(call: Call) -> Answer:
    """Move a stream to another compartment's default pool."""
    request = await call.service.catalog.move_stream(
        call.path["streamId"], call.headers.if_match, call.body.compartment_id
    )
    return changed(call, request)


def _summary(call: Call, record: StreamRecord, asked: str | None) -> StreamSummary:
    service = call.service
    return StreamSummary(
        name=record.name,
        id=service.catalog.streams.ocid(record.id),
        partitions=record.partitions,
        compartment_id=shown_compartment(call, record.compartment, asked),
        stream_pool_id=ocids.make(ocids.STREAM_POOL, service.settings.region, record.pool),
        lifecycle_state=service.catalog.state_of(record),
        time_created=time_text(record.created_ms),
        messages_endpoint=messages_endpoint(call),
        freeform_tags=record.freeform_tags,
        defined_tags=record.defined_tags,
    )


def _stream(call: Call, record: StreamRecord) -> Stream:
    return Stream(
        **asdict(_summary(call, record, None)),
        retention_in_hours=record.retention_hours,
    )
