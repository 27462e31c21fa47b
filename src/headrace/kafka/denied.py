"""What becomes of a request of which something is not granted: that part never reaches its handler.

Each API says how what is refused is taken out of its requests, and how it is answered. Names that are refused are
answered alike whether they exist or not.
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
    """Why something is refused, for the client."""

    code: Code
    message: str


class Refused(dict[Place, No]):
    """What a request may not have."""

    reason = ""
    """The first thing that is refused, without its name."""

    def add(self, rule: RequiredAcls, name: str, principal: Principal) -> None:
        """Note a resource that the principal may not have."""
        self.reason = self.reason or f"{rule.operation.value} {rule.type.value}"
        where = " of the server (the default virtual cluster)" if rule.of_server else ""
        message = cut(f"{principal} may not {rule.operation.value} {rule.type.value} {name}{where}")
        self.setdefault((rule.type, name), No(_CODES[rule.type], message))

    def first(self, places: Iterable[Place]) -> No | None:
        """Why a part of a request that needs these is refused; None: it is not."""
        return next((self[place] for place in places if place in self), None)


class Rest(NamedTuple):
    """What is left of a request from which something was taken out."""

    answer: Any | None = None
    """The whole answer where there is nothing left to do."""
    add: Callable[[Any], None] | None = None
    """Adds to the answer what was taken out."""


Steps = Generator[None, None, Rest]
TakeOut = Callable[[Any, RequestContext, Refused], Steps]
"""Takes what is refused out of a request, a small piece at each step, and returns the rest."""
Hide = Callable[[Any, RequestContext, Grants], Iterator[None]]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """How an API refuses."""

    take_out: TakeOut
    hide: Hide | None = None
    """Leaves out of an answer what its rules say must not be shown, step by step."""
    begin: Callable[[RequestContext], Any] | None = None
    """Makes the answer to a request of which nothing is left, where its handler does that (`always` of `parts`)."""


def drained(steps: Steps) -> Rest:
    """Take all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            rest: Rest = end.value
            return rest


def whole(answer: Callable[[Any, RequestContext, No], Any]) -> TakeOut:
    """Whatever is refused, the request is: `answer` says so."""

    def take_out(request: Any, context: RequestContext, refused: Refused) -> Steps:
        yield
        return Rest(answer(request, context, next(iter(refused.values()))))

    return take_out


def by_error_code(api_key: int) -> TakeOut:
    """As `whole`, where the response has room for one error. Raises ValueError where it has not."""
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
    """Parts of a request are refused one by one.

    Args:
        field: the request's list of them.
        needs: what one of them needs, given the part, the request and the request.
        answer: what the response has for one that is refused.
        into: the response's list of those.
        always: whether the handler gets the request also where nothing is left in that list.
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
    """What a part needs that is a topic, or has a topic's name."""
    yield ResourceType.TOPIC, part.name


def group_and_topic(part: Any, request: Any, _: RequestContext) -> Iterable[Place]:
    """What a topic in a request about a group needs."""
    yield ResourceType.GROUP, request.group_id
    yield ResourceType.TOPIC, part.name


def transaction_of(request: Any) -> Iterable[Place]:
    """What a request needs that may be part of a transaction."""
    if request.transactional_id is not None:
        yield ResourceType.TRANSACTIONAL_ID, request.transactional_id
