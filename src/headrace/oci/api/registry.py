"""Register the API's operations.

Routing, `docs/oci-operations.md` and the OpenAPI description use these registrations.
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
    """A routed, authenticated and parsed request."""

    service: "OciService"
    """Shared state of the operations."""
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
    """The authenticated client."""
    host: str
    """The client's address."""
    endpoint: str
    """The URL at which the client reached the API, such as `http://127.0.0.1:8080`."""
    injected: Injected = NONE
    """Requested faults."""

    @property
    def authorizes(self) -> bool:
        """Whether ACLs are enforced."""
        return self.service.broker.access.enabled

    def listing(self) -> AbstractAsyncContextManager[TimeSlice]:
        """See `Lane.listing`."""
        return self.service.broker.lane.listing()

    def log_change(self, operation: str) -> None:
        """Log that this call changed a resource."""
        what = ", ".join([operation, *(str(each)[:_MOST_TOLD] for each in self.path.values())])
        self.service.broker.access.audit.changed(str(self.principal), self.host, operation, what)

    def may(self, rule: Rule, resource: Resource) -> bool:
        """Return whether ACLs allow an operation on a resource."""
        grants = self.service.broker.access.grants(self.principal, self.host, resource.cluster)
        return grants is None or grants.allow(rule, resource.name)


class Answer(msgspec.Struct, frozen=True):
    """A successful response."""

    body: Any = None
    """A JSON value, or bytes of JSON; None: no body."""
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
    """A struct of query parameters. Field names become camel case."""
    headers: type[Any]
    """A struct of request headers, such as `if_match`. Field names become kebab case."""
    body: Any
    """The type of the request body; None: no body."""
    raw_body: bool
    """Whether the handler parses the body itself."""
    answer: Any
    """The type of the response body; None: no body."""
    status: int
    answer_headers: tuple[str, ...]
    repeats: bool
    """Whether the server may repeat a call after a lost response."""
    signs_body: bool
    """False for PutMessages, whose signature does not cover the body."""
    doc: str
    needs: Rules
    produces: bool
    """Whether its body counts for `producer_byte_rate`."""
    fetches: bool
    """Whether its answer counts for `consumer_byte_rate`."""
    mutated: Callable[[Call], int] | None
    """Number of partitions created or deleted, for `controller_mutation_rate`; None: 0."""

    @property
    def changes(self) -> bool:
        """Whether it changes resources or groups."""
        return self.method != "GET" and (self.client == "StreamAdminClient" or self.name == "UpdateGroup")

    def needed(self, call: Call) -> Iterator[tuple[Rule, Resource]]:
        """Yield the required ACLs and resources of a call."""
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
    """Register the decorated coroutine function. Raises ValueError for a duplicate."""

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
