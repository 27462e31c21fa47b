"""What this listener speaks: every API file registers itself here with one line.

ApiVersions and `docs/kafka-apis.md` are built from these registrations, so what is advertised is what is written. Each
says what it needs of whoever calls it; there is no default.
"""

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
        """Read one message."""


KafkaRules = tuple[RequiredAcls, ...]
Handler = Callable[[Any, RequestContext], Coroutine[Any, Any, Any] | None]
"""Either answers through the request, now or later, and returns None; or is a coroutine that returns the response."""


class Served(RequestContext, eq=False):
    """A request that serves itself once it has its place among those under way."""

    def serve(self) -> None:
        """Answer, now or later."""
        raise NotImplementedError


class WaitsFor(Enum):
    """Events, other than storage, for which requests of an API may wait without a limit."""

    RECORDS = "records"
    """Their answers leave at once: a consumer should have records before the producer learns that they are stored."""
    MEMBERS = "members"
    """Other members of a group. Each is counted from the start: it changes the group before it waits."""


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
    needs: KafkaRules
    refusal: Refusal | None
    """None: nothing of it can be refused, since it needs nothing."""
    keep: Callable[[Any, RequestContext], bool] | None
    """Makes a long request last that would else be overwritten while it is asked about in pieces; False: it is short
    after all. None: requests last."""
    most_bytes: int
    """The largest request; `socket.request.max.bytes` bounds it too."""
    element_bytes: int
    """How many bytes its arrays' elements take on average at least, in requests that can be meant: others are refused
    before they are objects."""
    bound: Bound | None
    """How long it is waited for; None: it asks storage for nothing, or its handler sees to it."""
    waits_for: WaitsFor | None
    """None: for storage alone."""
    urgent: bool
    """Whether it is served while clients come in a crowd: it is cheap, and records depend on it, or whether a member or
    the server is held to be alive."""
    one_gives_up_all: bool
    """Whether a request that waited behind one that was given up is given up as well: it would wait as long, and what
    is sent behind it too."""

    def needed(self, request: Any, context: RequestContext) -> Iterator[tuple[Rule, Resource]]:
        """What one request needs of `context.principal`: each rule with each resource that the request names."""
        for rule in self.needs:
            for resource in rule.resources(request, context):
                yield rule, resource

    def take_out(self, request: Any, context: RequestContext, refused: Refused) -> Steps:
        """Take out of a request what is refused."""
        assert self.refusal is not None
        return self.refusal.take_out(request, context, refused)


APIS: dict[int, Api] = {}

MOST_BYTES = 4 << 20
"""Of a request that carries no records: 10 000 partitions with a note each are less."""


class Shortcut(msgspec.Struct, frozen=True):
    """A second way for the plain requests of an API, around the message tables."""

    begin: Callable[[ResponseChannel, memoryview, int, int, bool], Served | None]
    """Makes a request of a plain request; None: this one is not plain.

    Given the connection, a buffer, where in it the frame begins and ends, and whether the buffer may be kept.
    """
    needs: KafkaRules
    """As the API's; their functions are given the request twice, since there is no other request."""


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
    """Make the decorated function the handler of an API.

    Args:
        request: the request's class.
        oldest: the first version advertised.
        newest: the last one.
        needs: what a request needs of whoever sends it, see `kafka.required_acls`; `ANYBODY` where that is nothing.
        refusal: how requests are refused; None: as `each` says, or as a whole, by the error code of the response.
        each: the items of a request that are answered one by one. The decorated function returns the
            function that answers one of them, or the response where that is all; see `kafka.server.executor`.
        keep: see `Api.keep`.
        refused_below: versions below are advertised and refused.
        most_bytes: a larger request closes its connection before its bytes are taken.
        element_bytes: of each element on average; a request with more of them closes its connection, too.
        bound: how long it is waited for, see `kafka.server.timeouts`; None: its handler sees to it. What cannot be
            refused asks storage for nothing.
        waits_for: what else it may wait for, see `WaitsFor`.
        urgent: see `Api.urgent`.
        one_gives_up_all: see `Api.one_gives_up_all`.

    Raises:
        ValueError: the API is registered already, the codec does not know all the versions, or what it needs could not
            be refused.
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
