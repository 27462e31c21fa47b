"""What this door offers: every operation registers itself here with one decorator.

Routing, `docs/oci-operations.md` and the OpenAPI description are built from these registrations.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec

from headrace.oci.call import Answer, Call

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
    signs_body: bool
    """False for PutMessages, whose signature leaves the body out."""
    doc: str


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str,
    method: str,
    path: str,
    *,
    client: Client,
    query: type[Any] = Nothing,
    headers: type[Any] = Nothing,
    body: Any = None,
    raw_body: bool = False,
    answer: Any = None,
    status: int = 200,
    answer_headers: tuple[str, ...] = (),
    signs_body: bool = True,
) -> Callable[[Handler], Handler]:
    """Make the decorated coroutine function the handler of an operation. Raises ValueError for a second one."""

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
            signs_body=signs_body,
            doc=(handler.__doc__ or "").strip(),
        )
        return handler

    return add
