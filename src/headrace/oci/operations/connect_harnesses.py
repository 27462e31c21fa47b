"""Connect harnesses."""

import msgspec
from msgspec.structs import asdict

from headrace.oci import ocids
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import server
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
    RetryTokenHeader,
    changed,
    given,
    wanted,
)
from headrace.oci.resources.catalog import TokenUse
from headrace.oci.resources.records import HarnessRecord
from headrace.records.fallback.messages import time_text
from headrace.security.access.required_acls import Operation


class ConnectHarnessSummary(msgspec.Struct, rename="camel"):
    """A connect harness in a list."""

    name: str
    id: str
    compartment_id: str
    lifecycle_state: str
    time_created: str
    freeform_tags: FreeformTags
    defined_tags: DefinedTags


class ConnectHarness(ConnectHarnessSummary, rename="camel"):
    """A connect harness."""

    lifecycle_state_details: str | None = None


class CreateConnectHarnessDetails(msgspec.Struct, rename="camel"):
    """The new connect harness."""

    name: Name
    compartment_id: Ocid
    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None


class UpdateConnectHarnessDetails(msgspec.Struct, rename="camel"):
    """The fields to change."""

    freeform_tags: FreeformTags | None = None
    defined_tags: DefinedTags | None = None


class ListConnectHarnessesQuery(ListQuery, rename="camel", kw_only=True):
    """The filter of a list."""

    compartment_id: Ocid


@operation(
    "CreateConnectHarness",
    "POST",
    "/connectharnesses",
    needs=(server(Operation.ALTER),),
    headers=RetryTokenHeader,
    body=CreateConnectHarnessDetails,
    answer=ConnectHarness,
    answer_headers=CHANGE_HEADERS,
)
async def create_connect_harness(call: Call) -> Answer:
    """Create a connect harness: an OCID for the names of Kafka Connect's internal topics."""
    details: CreateConnectHarnessDetails = call.body
    token = TokenUse.of(call.headers.opc_retry_token, "CreateConnectHarness", call.principal.name, details)
    record, request = await call.service.catalog.create_harness(
        token, details.name, details.compartment_id, details.freeform_tags or {}, details.defined_tags or {}
    )
    return changed(call, request, record, _harness(call, record))


@operation(
    "GetConnectHarness",
    "GET",
    "/connectharnesses/{connectHarnessId}",
    needs=(server(Operation.DESCRIBE),),
    answer=ConnectHarness,
    answer_headers=("etag",),
)
async def get_connect_harness(call: Call) -> Answer:
    """Return a connect harness. A deleted one is returned as DELETED for 90 days."""
    record = call.service.catalog.harnesses.get(call.path["connectHarnessId"])
    return Answer(_harness(call, record), {"etag": record.etag})


@operation(
    "ListConnectHarnesses",
    "GET",
    "/connectharnesses",
    needs=(server(Operation.DESCRIBE),),
    query=ListConnectHarnessesQuery,
    answer=list[ConnectHarnessSummary],
    answer_headers=LIST_HEADERS,
)
async def list_connect_harnesses(call: Call) -> Answer:
    """List the connect harnesses of a compartment, including deleted ones."""
    query: ListConnectHarnessesQuery = call.query
    async with call.listing() as pace:
        records = [
            each
            async for each in pace.each(call.service.catalog.harnesses.all())
            if each.compartment == query.compartment_id
        ]
        page = wanted(call, records, query, lambda record: _ocid(call, record))
    return Answer([_summary(call, record) for record in page.items], page.headers)


@operation(
    "UpdateConnectHarness",
    "PUT",
    "/connectharnesses/{connectHarnessId}",
    needs=(server(Operation.ALTER),),
    headers=IfMatch,
    body=UpdateConnectHarnessDetails,
    answer=ConnectHarness,
    answer_headers=CHANGE_HEADERS,
)
async def update_connect_harness(call: Call) -> Answer:
    """Change a connect harness's tags."""
    details: UpdateConnectHarnessDetails = call.body
    fields = given(freeform_tags=details.freeform_tags, defined_tags=details.defined_tags)
    record, request = await call.service.catalog.update_harness(
        call.path["connectHarnessId"], call.headers.if_match, fields
    )
    return changed(call, request, record, _harness(call, record))


@operation(
    "DeleteConnectHarness",
    "DELETE",
    "/connectharnesses/{connectHarnessId}",
    needs=(server(Operation.ALTER),),
    headers=IfMatch,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def delete_connect_harness(call: Call) -> Answer:
    """Delete a connect harness."""
    request = await call.service.catalog.delete_harness(call.path["connectHarnessId"], call.headers.if_match)
    return changed(call, request)


@operation(
    "ChangeConnectHarnessCompartment",
    "POST",
    "/connectharnesses/{connectHarnessId}/actions/changeCompartment",
    needs=(server(Operation.ALTER),),
    headers=IfMatch,
    body=ChangeCompartmentDetails,
    status=204,
    answer_headers=("opc-work-request-id",),
)
async def change_connect_harness_compartment(call: Call) -> Answer:
    """Move a connect harness to another compartment."""
    _, request = await call.service.catalog.update_harness(
        call.path["connectHarnessId"], call.headers.if_match, {"compartment": call.body.compartment_id}
    )
    return changed(call, request)


def _ocid(call: Call, record: HarnessRecord) -> str:
    return ocids.make(ocids.CONNECT_HARNESS, call.service.settings.region, record.id)


def _summary(call: Call, record: HarnessRecord) -> ConnectHarnessSummary:
    return ConnectHarnessSummary(
        name=record.name,
        id=_ocid(call, record),
        compartment_id=record.compartment,
        lifecycle_state=call.service.catalog.state_of(record),
        time_created=time_text(record.created_ms),
        freeform_tags=record.freeform_tags,
        defined_tags=record.defined_tags,
    )


def _harness(call: Call, record: HarnessRecord) -> ConnectHarness:
    return ConnectHarness(**asdict(_summary(call, record)))
