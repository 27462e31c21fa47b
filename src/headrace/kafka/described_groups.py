"""Groups of a request that describes them: DescribeGroups, ConsumerGroupDescribe and ShareGroupDescribe."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace.broker.admin.acl_authorizer import Grants
from headrace.groups.errors import GroupError
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import topics
from headrace.kafka.server.request_context import RequestContext
from headrace.security.access.required_acls import Operation, ResourceType

TOPICS = topics(Operation.DESCRIBE, lambda request, _: (), shown=True)
"""The topics in the responses for newer groups need DESCRIBE."""
_HIDDEN = "The group uses topics that the client may not describe."


async def problems(names: Sequence[str], context: RequestContext) -> Callable[[str], Code | None]:
    """Return a function for the error of a named group, if this broker cannot describe it.

    POLICY_VIOLATION: the memory for responses (`headrace.reads.bytes`) does not suffice for it.
    """
    groups, ownership = context.broker.groups, context.broker.ownership
    view = ownership.number
    named = dict.fromkeys(names)
    errors = {name: await groups.ready(name) async for name in context.pace().each(named)}
    fitting = await context.reserve_parts({name: groups.size(name) for name in named})

    def problem(name: str) -> Code | None:
        if name not in fitting:
            return Code.POLICY_VIOLATION
        error = errors[name]
        if error is None and ownership.number != view and not groups.exists(name):
            # The cluster membership has changed since the groups were loaded, and another broker may coordinate it.
            error = GroupError.COORDINATOR_NOT_AVAILABLE
        return None if error is None else code_of(error)

    return problem


def place(name: str, _: Any, __: RequestContext) -> Iterator[Place]:
    """Yield a named group."""
    yield ResourceType.GROUP, name


def hide(
    topics_of: Callable[[Any], Iterable[str]], refused: Callable[[str, Code, str | None], Any]
) -> Callable[[Any, RequestContext, Grants], Iterator[None]]:
    """Return the function that refuses groups with topics that the client may not describe, as Kafka does.

    `refused` makes the description of such a group, with an error.
    """

    def hidden(response: Any, _: RequestContext, grants: Grants) -> Iterator[None]:
        shown = []
        for group in response.groups:
            denied = False
            for name in topics_of(group):
                yield
                if not grants.allow(TOPICS, name):
                    denied = True
                    break
            shown.append(refused(group.group_id, Code.TOPIC_AUTHORIZATION_FAILED, _HIDDEN) if denied else group)
        response.groups = shown

    return hidden
