"""What this API offers: every operation registers itself here with one decorator, and gets a `Call`.

Routing, `docs/oci-operations.md` and the OpenAPI description are built from these registrations. Each declares which
rights it needs; there is no default.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.oci.faults import NONE, Injected
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import Resource, Rule, Rules

if TYPE_CHECKING:
    from headrace.oci.api.service import OciService


_MOST_TOLD = 128


@dataclass(slots=True, eq=False)
class Call:
    """A request that was routed, authenticated and read. Path, query, headers and body have their types already."""

    service: "OciService"
    """What operations work on."""
    _: KW_ONLY
    path: Mapping[str, str]
    """Path parameters, decoded."""
    query: Any
    """The operation's struct of query parameters."""
    headers: Any
    """Its struct of request headers."""
    body: Any
    """The decoded body, None without one."""
    principal: Principal
    """Who asks."""
    host: str
    """The address that they ask from."""
    endpoint: str
    """The URL by which this client reached the API, such as `http://127.0.0.1:8080`."""
    injected: Injected = NONE
    """Faults that were asked for."""

    @property
    def authorizes(self) -> bool:
        """Whether access rules count."""
        return self.service.broker.access.enabled

    def listing(self) -> AbstractAsyncContextManager[TimeSlice]:
        """See `Lane.listing`."""
        return self.service.broker.lane.listing()

    def log_change(self, operation: str) -> None:
        """Record a change of this call in the audit log. Each log line of a request has its id."""
        what = ", ".join([operation, *(str(each)[:_MOST_TOLD] for each in self.path.values())])
        self.service.broker.access.audit.changed(str(self.principal), self.host, operation, what)

    def may(self, rule: Rule, resource: Resource) -> bool:
        """Whether what a rule needs of a resource is granted to who asks."""
        grants = self.service.broker.access.grants(self.principal, self.host, resource.cluster)
        return grants is None or grants.allow(rule, resource.name)


class Answer(msgspec.Struct, frozen=True):
    """What an operation answers when all went well; the status is the registration's."""

    body: Any = None
    """A value for JSON, or bytes that are JSON already; None: no body."""
    headers: dict[str, str] = {}


Client = Literal["StreamClient", "StreamAdminClient"]
Handler = Callable[[Call], Coroutine[Any, Any, Answer]]


class Nothing(msgspec.Struct, frozen=True):
    """No parameters."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One registered operation."""

    name: str
    """Oracle's name, such as `PutMessages`."""
    client: Client
    method: str
    path: str
    """Below the base path, with parameters in braces; `{name:rest}` takes the rest of the path, slashes included."""
    handler: Handler
    query: type[Any]
    """A struct of query parameters; field names are turned into camel case."""
    headers: type[Any]
    """A struct of request headers, such as `if_match`; field names are turned into kebab case."""
    body: Any
    """The type of the request's body; None: there is none."""
    raw_body: bool
    """Whether the handler gets the body's bytes and reads them itself."""
    answer: Any
    """The type of the answer's body; None: there is none."""
    status: int
    answer_headers: tuple[str, ...]
    repeats: bool
    """Whether a call may be made again by the server where the answer to the first one was lost."""
    signs_body: bool
    """False for PutMessages, whose signature leaves the body out."""
    doc: str
    needs: Rules
    produces: bool
    """Whether its body counts for `producer_byte_rate`."""
    fetches: bool
    """Whether its answer counts for `consumer_byte_rate`."""
    mutated: Callable[[Call], int] | None
    """How many partitions it creates or deletes, for `controller_mutation_rate`; None: none."""

    @property
    def changes(self) -> bool:
        """Whether it changes what others depend on, and is no part of reading or writing messages."""
        return self.method != "GET" and (self.client == "StreamAdminClient" or self.name == "UpdateGroup")

    def needed(self, call: Call) -> Iterator[tuple[Rule, Resource]]:
        """What one call needs of `call.principal`: each rule with each resource that the call names."""
        for rule in self.needs:
            for resource in rule.resources(call):
                yield rule, resource


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str,
    method: str,
    path: str,
    *,
    client: Client = "StreamAdminClient",
    needs: Rules,
    query: type[Any] = Nothing,
    headers: type[Any] = Nothing,
    body: Any = None,
    raw_body: bool = False,
    answer: Any = None,
    status: int = 200,
    answer_headers: tuple[str, ...] = (),
    repeats: bool = True,
    signs_body: bool = True,
    produces: bool = False,
    fetches: bool = False,
    mutated: Callable[[Call], int] | None = None,
) -> Callable[[Handler], Handler]:
    """Make the decorated coroutine function the handler of an operation. Raises ValueError for a second one.

    `needs`: what a call needs of whoever makes it, as made by `oci.api.required_acls`. The rest: see `Operation`.
    """

    def add(handler: Handler) -> Handler:
        if name in OPERATIONS:
            raise ValueError(f"{name} is registered twice")
        OPERATIONS[name] = Operation(
            name=name,
            client=client,
            method=method,
            path=path,
            handler=handler,
            query=query,
            headers=headers,
            body=body,
            raw_body=raw_body,
            answer=answer,
            status=status,
            answer_headers=answer_headers,
            repeats=repeats,
            signs_body=signs_body,
            doc=(handler.__doc__ or "").strip(),
            needs=needs,
            produces=produces,
            fetches=fetches,
            mutated=mutated,
        )
        return handler

    return add
