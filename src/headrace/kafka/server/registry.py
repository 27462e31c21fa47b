"""Registry of the Kafka APIs, for ApiVersions and `docs/kafka-apis.md`."""

from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from typing import Any, Protocol

import msgspec

from headrace.kafka.denied import Refusal, Refused, Steps, TakeOut, by_error_code
from headrace.kafka.required_acls import RequiredAcls
from headrace.kafka.server.executor import Each
from headrace.kafka.server.request_context import RequestContext, ResponseChannel
from headrace.kafka.server.timeouts import UNSAID, Bound
from headrace.security.access.required_acls import Resource, Rule


class Message(Protocol):
    """A request or response class of the codec."""

    API_KEY: int

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int, version: int) -> Any:
        """Decode one message."""


KafkaRules = tuple[RequiredAcls, ...]
Handler = Callable[[Any, RequestContext], Coroutine[Any, Any, Any] | None]
"""Answers through the request and returns None, or is a coroutine that returns the response."""


class Served(RequestContext, eq=False):
    """A request that serves itself."""

    def serve(self) -> None:
        """Answer, now or later."""
        raise NotImplementedError


class WaitsFor(Enum):
    """Events other than storage that requests may wait for."""

    RECORDS = "records"
    """Responses leave at once: consumers get records before the producer gets its response."""
    MEMBERS = "members"
    """Other group members. Each request is counted from the start: it changes the group before it waits."""


class Api(msgspec.Struct, frozen=True):
    """One registered API."""

    key: int
    name: str
    request: type[Any]
    oldest: int
    newest: int
    refused_below: int
    """Advertised versions below this one are refused when used."""
    handler: Handler
    needs: KafkaRules
    refusal: Refusal | None
    """None: no part can be refused, since no permission is needed."""
    keep: Callable[[Any, RequestContext], bool] | None
    """Copies a long request before it is authorized in slices, and returns False for a short one. None: requests stay
    valid.
    """
    most_bytes: int
    """Maximum bytes of a request; `socket.request.max.bytes` also applies."""
    element_bytes: int
    """Minimum average bytes of an array element; requests with smaller ones are refused before decoding."""
    bound: Bound | None
    """Timeout; None: it does not use storage, or its handler limits the wait."""
    waits_for: WaitsFor | None
    """None: for storage only."""
    urgent: bool
    """Whether it is served first under load: it is cheap, and records or liveness checks depend on it."""
    one_gives_up_all: bool
    """Whether a timeout also applies to the requests that wait after the one that timed out."""

    def needed(self, request: Any, context: RequestContext) -> Iterator[tuple[Rule, Resource]]:
        """Yield the rules of a request with their resources."""
        for rule in self.needs:
            for resource in rule.resources(request, context):
                yield rule, resource

    def take_out(self, request: Any, context: RequestContext, refused: Refused) -> Steps:
        """Remove refused parts from a request."""
        assert self.refusal is not None
        return self.refusal.take_out(request, context, refused)


APIS: dict[int, Api] = {}

MOST_BYTES = 4 << 20
"""Bytes of a request without records: 10,000 partitions with metadata take less."""


class Shortcut(msgspec.Struct, frozen=True):
    """A fast path for simple requests of an API."""

    begin: Callable[[ResponseChannel, memoryview, int, int, bool], Served | None]
    """Creates a request from a simple frame; None: the frame is not simple.

    Takes the connection, a buffer, start and end of the frame, and whether the buffer may be kept.
    """
    needs: KafkaRules
    """As the API's; their functions get the request as both arguments."""


SHORTCUTS: dict[int, Shortcut] = {}
"""By API key."""


def register(
    request: type[Any],
    oldest: int,
    newest: int,
    *,
    needs: KafkaRules,
    refusal: Refusal | TakeOut | None = None,
    each: Each | None = None,
    keep: Callable[[Any, RequestContext], bool] | None = None,
    refused_below: int = 0,
    most_bytes: int = MOST_BYTES,
    element_bytes: int = 1,
    bound: Bound | None = UNSAID,
    waits_for: WaitsFor | None = None,
    urgent: bool = False,
    one_gives_up_all: bool = False,
) -> Callable[[Callable[[Any, RequestContext], Any]], Handler]:
    """Register the decorated function as the handler of an API; see `Api` for the arguments.

    `needs` must be `ANYBODY` if no ACL is required. By default, `each` or an error code refuses requests. With `each`
    (see `kafka.server.executor`), the function returns the function for one item, or the response.

    Raises:
        ValueError: the API is registered already, a version is unknown, or its needs cannot be refused.
    """

    def add(decorated: Callable[[Any, RequestContext], Any]) -> Handler:
        handler = decorated if each is None else each.handler(decorated)
        key = request.API_KEY
        name = request.__name__.removesuffix("Request")
        known_oldest, known_newest = request.VERSIONS
        if key in APIS:
            raise ValueError(f"API {key} ({name}) is registered twice")
        if not known_oldest <= max(oldest, refused_below) <= newest <= known_newest:
            raise ValueError(f"{name} {oldest}-{newest} is outside the codec's {known_oldest}-{known_newest}")
        how = _refusal(key, name, needs, each.take_out if each is not None and refusal is None else refusal)
        late = None if how is None else bound
        APIS[key] = Api(
            key,
            name,
            request,
            oldest,
            newest,
            refused_below,
            handler,
            needs,
            how,
            keep,
            most_bytes,
            element_bytes,
            late,
            waits_for,
            urgent,
            one_gives_up_all,
        )
        return handler

    return add


def _refusal(key: int, name: str, needs: KafkaRules, given: Refusal | TakeOut | None) -> Refusal | None:
    if not needs:
        return None
    how = given if isinstance(given, Refusal) else Refusal(take_out=given or by_error_code(key))
    if any(rule.shown for rule in needs) != (how.hide is not None):
        raise ValueError(f"{name} says what may be shown, and not how the rest is hidden, or the other way round")
    return how
