"""Shared parts of the admin operations."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from headrace.oci import ocids
from headrace.oci.api.registry import Answer, Call
from headrace.oci.resources.paging import LONGEST, Key, Order, Page, page_of
from headrace.oci.resources.records import STATES, Record, WorkRequestRecord

R = TypeVar("R", bound=Record)

NOWHERE = "ocid1.tenancy.oc1..headrace"
"""Compartment of shared resources for clients without a known tenancy."""


def _any_case(words: Iterable[str]) -> str:
    letters = ("".join(f"[{c}{c.lower()}]" if c.isalpha() else c for c in word) for word in words)
    return f"^({'|'.join(letters)})$"


Ocid = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=50)]
PageToken = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
SortOrder = Annotated[str, msgspec.Meta(pattern=_any_case(("ASC", "DESC")))]
SortBy = Annotated[str, msgspec.Meta(pattern=_any_case(("NAME", "TIMECREATED")))]
LifecycleState = Annotated[str, msgspec.Meta(pattern=_any_case(STATES))]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
FreeformTags = dict[str, str]
DefinedTags = dict[str, dict[str, Any]]


class ListQuery(msgspec.Struct, rename="camel"):
    """Filter, order and page of a list."""

    id: str | None = None
    name: str | None = None
    lifecycle_state: LifecycleState | None = None
    limit: Limit | None = None
    page: PageToken | None = None
    sort_by: SortBy = "TIMECREATED"
    sort_order: SortOrder | None = None


class IfMatch(msgspec.Struct, rename="kebab"):
    """The required etag."""

    if_match: Annotated[str, msgspec.Meta(max_length=255)] | None = None


class RetryTokenHeader(msgspec.Struct, rename="kebab"):
    """A token for one creation."""

    opc_retry_token: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None


class ChangeCompartmentDetails(msgspec.Struct, rename="camel"):
    """The new compartment."""

    compartment_id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


LIST_HEADERS = ("opc-next-page", "opc-prev-page")
CHANGE_HEADERS = ("etag", "opc-work-request-id")


def shown_compartment(call: Call, compartment: str, asked: str | None = None) -> str:
    """Return a resource's compartment. Shared resources have the requested one or the client's root."""
    return compartment or asked or call.principal.tenancy or NOWHERE


def is_in(call: Call, compartment: str, asked: str) -> bool:
    """Return whether a resource is in the requested compartment."""
    if compartment:
        return compartment == asked
    return call.service.settings.pools == "shared" or asked == call.principal.tenancy


def wanted(call: Call, records: Iterable[R], query: ListQuery, ocid: Callable[[R], str]) -> Page[R]:
    """Return a page of matching records. Raises OciError 400 for an invalid page token."""
    state = query.lifecycle_state.upper() if query.lifecycle_state is not None else None
    state_of = call.service.catalog.state_of
    chosen = [
        record
        for record in records
        if (query.id is None or query.id == ocid(record))
        and (query.name is None or query.name == record.name)
        and (state is None or state == state_of(record))
    ]
    by_name = query.sort_by.upper() == "NAME"

    def key(record: R) -> Key:
        return (record.name if by_name else record.created_ms), record.id

    order = order_of(query.sort_order, "ASC" if by_name else "DESC")
    return page_of(chosen, key, query.sort_by.upper(), order, query.limit, query.page)


def order_of(text: str | None, default: Order) -> Order:
    """Return the requested or default order."""
    return {"ASC": "ASC", "DESC": "DESC"}[text.upper()] if text is not None else default  # type: ignore[return-value]


def changed(call: Call, request: WorkRequestRecord | str, record: Record | None = None, body: Any = None) -> Answer:
    """Return the response to a change (`oci.work.requests`)."""
    headers = {}
    if record is not None:
        headers["etag"] = record.etag
    settings = call.service.settings
    if settings.work_requests:
        unique = request if isinstance(request, str) else request.id
        headers["opc-work-request-id"] = ocids.make(ocids.WORK_REQUEST, settings.region, unique)
    return Answer(body, headers)


def messages_endpoint(call: Call) -> str:
    """Return the configured endpoint for messages, or that of this request."""
    return call.service.settings.messages_endpoint or call.endpoint


def host_of(url: str) -> str:
    """Return the host of an endpoint."""
    return urlsplit(url).hostname or ""


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that an update sets."""
    return {name: value for name, value in fields.items() if value is not None}
