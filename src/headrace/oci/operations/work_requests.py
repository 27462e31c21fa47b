"""Work requests."""

from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import msgspec

from headrace.oci import ocids
from headrace.oci.api.registry import Answer, Call, operation
from headrace.oci.api.required_acls import server
from headrace.oci.api.resource_responses import (
    LIST_HEADERS,
    Limit,
    Ocid,
    PageToken,
    SortOrder,
    is_in,
    order_of,
    shown_compartment,
)
from headrace.oci.api.routing import BASE
from headrace.oci.resources.paging import Key, Page, page_of
from headrace.oci.resources.records import WorkRequestRecord, percent_of, started_ms, status_of
from headrace.records.fallback.messages import time_text
from headrace.security.access.required_acls import Operation

T = TypeVar("T")

_PATHS = {ocids.STREAM: "streams", ocids.STREAM_POOL: "streampools", ocids.CONNECT_HARNESS: "connectharnesses"}
_DONE = {"CREATE": "CREATED", "UPDATE": "UPDATED", "DELETE": "DELETED"}

SortBy = Annotated[str, msgspec.Meta(pattern="^[Tt][Ii][Mm][Ee][Aa][Cc][Cc][Ee][Pp][Tt][Ee][Dd]$")]


class WorkRequestResource(msgspec.Struct, rename="camel"):
    """A resource of a work request."""

    entity_type: str
    action_type: str
    identifier: str
    entity_uri: str


class WorkRequest(msgspec.Struct, rename="camel"):
    """A requested change and its progress."""

    operation_type: str
    status: str
    id: str
    compartment_id: str
    resources: list[WorkRequestResource]
    percent_complete: float
    time_accepted: str
    time_started: str | None
    time_finished: str | None


class WorkRequestSummaryCollection(msgspec.Struct):
    """A page of work requests."""

    items: list[WorkRequest]


class WorkRequestError(msgspec.Struct):
    """An error of a work request."""

    code: str
    message: str
    timestamp: str


class WorkRequestErrorCollection(msgspec.Struct):
    """The errors of a work request, always empty: the server rejects an impossible change immediately."""

    items: list[WorkRequestError]


class WorkRequestLogEntry(msgspec.Struct):
    """A step of a work request."""

    message: str
    timestamp: str


class WorkRequestLogEntryCollection(msgspec.Struct):
    """The steps of a work request."""

    items: list[WorkRequestLogEntry]


class PageQuery(msgspec.Struct, rename="camel"):
    """The page and order of a list."""

    limit: Limit | None = None
    page: PageToken | None = None
    sort_by: SortBy | None = None
    sort_order: SortOrder | None = None


class ListWorkRequestsQuery(PageQuery, rename="camel"):
    """The filter of a list."""

    work_request_id: str | None = None
    compartment_id: Ocid | None = None
    resource_id: str | None = None


@operation(
    "GetWorkRequest",
    "GET",
    "/workRequests/{workRequestId}",
    needs=(server(Operation.DESCRIBE),),
    answer=WorkRequest,
)
async def get_work_request(call: Call) -> Answer:
    """Return a work request, up to seven days after its end."""
    return Answer(_shown(call, call.service.catalog.work_request(call.path["workRequestId"]), None))


@operation(
    "ListWorkRequests",
    "GET",
    "/workRequests",
    needs=(server(Operation.DESCRIBE),),
    query=ListWorkRequestsQuery,
    answer=WorkRequestSummaryCollection,
    answer_headers=LIST_HEADERS,
)
async def list_work_requests(call: Call) -> Answer:
    """List work requests, the latest first."""
    query: ListWorkRequestsQuery = call.query
    asked = query.compartment_id
    async with call.listing() as pace:
        records = [
            each
            async for each in pace.each(call.service.catalog.work_requests())
            if (asked is None or is_in(call, each.compartment, asked))
            and (query.work_request_id is None or query.work_request_id == _ocid(call, each))
            and (
                query.resource_id is None or query.resource_id in {_of(call, *resource) for resource in each.resources}
            )
        ]
        page = _page(query, records, lambda each: (each.accepted_ms, each.id))
    return Answer(WorkRequestSummaryCollection([_shown(call, each, asked) for each in page.items]), page.headers)


@operation(
    "ListWorkRequestErrors",
    "GET",
    "/workRequests/{workRequestId}/errors",
    needs=(server(Operation.DESCRIBE),),
    query=PageQuery,
    answer=WorkRequestErrorCollection,
    answer_headers=LIST_HEADERS,
)
async def list_work_request_errors(call: Call) -> Answer:
    """List the errors of a work request. The list is always empty."""
    call.service.catalog.work_request(call.path["workRequestId"])
    page = _page(call.query, (), _entry_key)
    return Answer(WorkRequestErrorCollection([]), page.headers)


@operation(
    "ListWorkRequestLogs",
    "GET",
    "/workRequests/{workRequestId}/logs",
    needs=(server(Operation.DESCRIBE),),
    query=PageQuery,
    answer=WorkRequestLogEntryCollection,
    answer_headers=LIST_HEADERS,
)
async def list_work_request_logs(call: Call) -> Answer:
    """List the steps of a work request, the latest first."""
    request = call.service.catalog.work_request(call.path["workRequestId"])
    now_ms = call.service.clock.now_ms()
    steps = [
        (request.accepted_ms, f"{request.operation} was accepted"),
        (started_ms(request), f"{request.operation} has started"),
        (request.finished_ms, f"{request.operation} has succeeded"),
    ]
    happened = [(at_ms, step, text) for step, (at_ms, text) in enumerate(steps) if at_ms <= now_ms]
    page = _page(call.query, happened, _entry_key)
    entries = [WorkRequestLogEntry(text, time_text(at_ms)) for at_ms, _, text in page.items]
    return Answer(WorkRequestLogEntryCollection(entries), page.headers)


def _entry_key(entry: tuple[int, int, str]) -> Key:
    return entry[0], str(entry[1])


def _page(query: PageQuery, entries: Iterable[T], key: Callable[[T], Key]) -> Page[T]:
    return page_of(entries, key, "TIMEACCEPTED", order_of(query.sort_order, "DESC"), query.limit, query.page)


def _ocid(call: Call, request: WorkRequestRecord) -> str:
    return _of(call, ocids.WORK_REQUEST, request.id)


def _of(call: Call, kind: str, unique: str) -> str:
    return ocids.make(kind, call.service.settings.region, unique)


def _shown(call: Call, request: WorkRequestRecord, asked: str | None) -> WorkRequest:
    now_ms = call.service.clock.now_ms()
    status = status_of(request, now_ms)
    done = status == "SUCCEEDED"
    action = _DONE[request.operation.partition("_")[0]] if done else "IN_PROGRESS"
    return WorkRequest(
        operation_type=request.operation,
        status=status,
        id=_ocid(call, request),
        compartment_id=shown_compartment(call, request.compartment, asked),
        resources=[
            WorkRequestResource(kind, action, ocid, f"/{BASE}/{_PATHS[kind]}/{ocid}")
            for kind, ocid in ((kind, _of(call, kind, unique)) for kind, unique in request.resources)
        ],
        percent_complete=percent_of(request, now_ms),
        time_accepted=time_text(request.accepted_ms),
        time_started=time_text(started_ms(request)) if status != "ACCEPTED" else None,
        time_finished=time_text(request.finished_ms) if done else None,
    )
