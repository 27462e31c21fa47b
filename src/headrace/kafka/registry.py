"""What this door speaks: every API file registers itself here with one line.

ApiVersions and `docs/kafka-apis.md` are built from these registrations, so what is advertised is what is written.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from headrace.kafka.exchange import Exchange, Outlet


class Message(Protocol):
    """A request or response class of the codec."""

    API_KEY: int

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int, version: int) -> Any:
        """Read one message."""


Handler = Callable[[Any, Exchange], Coroutine[Any, Any, Any] | None]
"""Either answers through the exchange, now or later, and returns None; or is a coroutine that returns the response."""


class Served(Exchange, eq=False):
    """A request that serves itself once it has its place among those under way."""

    def serve(self) -> None:
        """Answer, now or later."""
        raise NotImplementedError


class Api(msgspec.Struct, frozen=True):
    """One registered API."""

    key: int
    name: str
    request: type[Any]
    oldest: int
    newest: int
    refused_below: int
    """Versions from `oldest` up to here are advertised, and refused when used."""
    handler: Handler


APIS: dict[int, Api] = {}

SHORTCUTS: dict[int, Callable[[Outlet, memoryview, int, int, bool], Served | None]] = {}
"""API key -> what makes an exchange of a plain request without the message tables; None: this one is not plain.

Given the connection, a buffer, where in it the frame begins and ends, and whether the buffer may be kept.
"""


def register(request: type[Any], oldest: int, newest: int, *, refused_below: int = 0) -> Callable[[Handler], Handler]:
    """Make the decorated function the handler of an API.

    Raises:
        ValueError: the API is registered already, or the codec does not know all the versions.
    """

    def add(handler: Handler) -> Handler:
        key = request.API_KEY
        name = request.__name__.removesuffix("Request")
        known_oldest, known_newest = request.VERSIONS
        if key in APIS:
            raise ValueError(f"API {key} ({name}) is registered twice")
        if not known_oldest <= max(oldest, refused_below) <= newest <= known_newest:
            raise ValueError(f"{name} {oldest}-{newest} is outside the codec's {known_oldest}-{known_newest}")
        APIS[key] = Api(key, name, request, oldest, newest, refused_below, handler)
        return handler

    return add
