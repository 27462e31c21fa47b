"""What this listener speaks: every API file registers itself here with one line.

ApiVersions and `docs/kafka-apis.md` are built from these registrations, so what is advertised is what is written. Each
says what it needs of whoever calls it; there is no default.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import msgspec

from headrace.access.needs import Resource, Rule, Rules
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
    needs: Rules
    most_bytes: int
    """The largest request; `socket.request.max.bytes` bounds it too."""

    def needed(self, request: Any, exchange: Exchange) -> Iterator[tuple[Rule, Resource]]:
        """What one request needs of `exchange.principal`: each rule with each resource that the request names."""
        for rule in self.needs:
            for resource in rule.resources(request, exchange):
                yield rule, resource


APIS: dict[int, Api] = {}

MOST_BYTES = 4 << 20
"""Of a request that carries no records: 10 000 partitions with a note each are less."""


class Shortcut(msgspec.Struct, frozen=True):
    """A second way for the plain requests of an API, around the message tables."""

    begin: Callable[[Outlet, memoryview, int, int, bool], Served | None]
    """Makes an exchange of a plain request; None: this one is not plain.

    Given the connection, a buffer, where in it the frame begins and ends, and whether the buffer may be kept.
    """
    needs: Rules
    """As the API's; their functions are given the exchange twice, since there is no other request."""


SHORTCUTS: dict[int, Shortcut] = {}
"""By API key."""


def register(
    request: type[Any],
    oldest: int,
    newest: int,
    *,
    needs: Rules,
    refused_below: int = 0,
    most_bytes: int = MOST_BYTES,
) -> Callable[[Handler], Handler]:
    """Make the decorated function the handler of an API.

    Args:
        request: the request's class.
        oldest: the first version advertised.
        newest: the last one.
        needs: what a request needs of whoever sends it, as made by `kafka.needs`; `ANYBODY` where that is nothing.
        refused_below: versions below are advertised and refused.
        most_bytes: a larger request closes its connection before its bytes are taken.

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
        APIS[key] = Api(key, name, request, oldest, newest, refused_below, handler, needs, most_bytes)
        return handler

    return add
