"""Removal of unauthorized parts from requests, before their handlers.

Responses do not depend on whether a refused name exists.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from headrace.broker.admin.acl_authorizer import Grants
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import RequiredAcls
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import RESPONSES
from headrace.security.access.principal import Principal
from headrace.security.access.required_acls import ResourceType
from headrace.topics.errors import cut

Place = tuple[ResourceType, str]
_CODES = {
    ResourceType.TOPIC: Code.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: Code.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: Code.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class No(NamedTuple):
    """The reason of a refusal, for the client."""

    code: Code
    message: str


class Refused(dict[Place, No]):
    """The refused resources of a request."""

    reason = ""
    """The first refusal, without its name."""

    def add(self, rule: RequiredAcls, name: str, principal: Principal) -> None:
        """Add a resource."""
        self.reason = self.reason or f"{rule.operation.value} {rule.type.value}"
        where = " of the server (the default virtual cluster)" if rule.of_server else ""
        message = cut(f"{principal} may not {rule.operation.value} {rule.type.value} {name}{where}")
        self.setdefault((rule.type, name), No(_CODES[rule.type], message))

    def first(self, places: Iterable[Place]) -> No | None:
        """Return the first refusal of these resources, or None."""
        return next((self[place] for place in places if place in self), None)


class Rest(NamedTuple):
    """The remainder of a request after a removal."""

    answer: Any | None = None
    """The complete response if no part remains."""
    add: Callable[[Any], None] | None = None
    """Adds refused parts to the response."""


Steps = Generator[None, None, Rest]
TakeOut = Callable[[Any, RequestContext, Refused], Steps]
"""Removes refused parts from a request in small steps, and returns the remainder."""
Hide = Callable[[Any, RequestContext, Grants], Iterator[None]]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that refuse requests of an API."""

    take_out: TakeOut
    hide: Hide | None = None
    """Removes from a response, in steps, what the client must not see."""
    begin: Callable[[RequestContext], Any] | None = None
    """Creates the response if no part remains and the handler would create it (`always` of `parts`)."""


def drained(steps: Steps) -> Rest:
    """Run all steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            rest: Rest = end.value
            return rest


def whole(answer: Callable[[Any, RequestContext, No], Any]) -> TakeOut:
    """Refuse the whole request with `answer`."""

    def take_out(request: Any, context: RequestContext, refused: Refused) -> Steps:
        yield
        return Rest(answer(request, context, next(iter(refused.values()))))

    return take_out


def by_error_code(api_key: int) -> TakeOut:
    """Refuse the whole request with an error code. Raises ValueError if the response has none."""
    response = RESPONSES[api_key]
    fields = response.__struct_fields__
    if "error_code" not in fields:
        raise ValueError(f"{response.__name__} has no error of its own: say how requests are refused")

    def answer(_: Any, __: RequestContext, no: No) -> Any:
        made = response()
        made.error_code = no.code  # type: ignore[attr-defined]
        if "error_message" in fields:
            made.error_message = no.message  # type: ignore[attr-defined]
        return made

    return whole(answer)


def parts(
    field: str,
    needs: Callable[[Any, Any, RequestContext], Iterable[Place]],
    answer: Callable[[Any, No, RequestContext], Any],
    into: str,
    *,
    always: bool = False,
) -> TakeOut:
    """Refuse parts of a request separately.

    Args:
        field: request field with the parts.
        needs: returns the resources of a part, given the part, the request and its context.
        answer: returns the response to a refused part.
        into: response field for these.
        always: whether to call the handler even if no part remains.
    """

    def take_out(request: Any, context: RequestContext, refused: Refused) -> Steps:
        kept, answers = [], []
        for part in getattr(request, field):
            yield
            no = refused.first(needs(part, request, context))
            if no is None:
                kept.append(part)
            else:
                answers.append(answer(part, no, context))
        setattr(request, field, kept)
        context.taken_out += len(answers)
        if not kept and not always:
            response: Any = RESPONSES[context.api_key]()
            setattr(response, into, answers)
            return Rest(response)
        return Rest(add=lambda response: getattr(response, into).extend(answers))

    return take_out


def topic_named(part: Any, _: Any, __: RequestContext) -> Iterable[Place]:
    """Yield the topic of a part."""
    yield ResourceType.TOPIC, part.name


def group_and_topic(part: Any, request: Any, _: RequestContext) -> Iterable[Place]:
    """Yield group and topic of a part."""
    yield ResourceType.GROUP, request.group_id
    yield ResourceType.TOPIC, part.name


def transaction_of(request: Any) -> Iterable[Place]:
    """Yield the request's transactional id, if any."""
    if request.transactional_id is not None:
        yield ResourceType.TRANSACTIONAL_ID, request.transactional_id
