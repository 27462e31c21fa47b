"""What this API offers: every operation registers itself here with one decorator.

Routing, `docs/oci-operations.md` and the OpenAPI description are built from these registrations. Each says what it
needs of whoever calls it; there is no default.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal

import msgspec

from headrace.oci.api.call import Answer, Call
from headrace.security.access.required_acls import Resource, Rule, Rules

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
    client: Client,
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
