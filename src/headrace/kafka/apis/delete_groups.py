"""DeleteGroups (42), versions 0-2.

Behavior
- Deletes groups with their committed offsets, and share groups with the states of their partitions. A group must have
  no members.

Version notes
- 2: flexible.
"""

from collections.abc import Iterator
from itertools import count

from headrace.groups.effects import DeleteGroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import DeleteGroup
from headrace.groups.sharing.group import ShareGroup
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.security.access.required_acls import Operation, ResourceType


def _places(name: str, _: DeleteGroupsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.GROUP, name


def _outcome(name: str, code: Code, _: str | None) -> DeleteGroupsResponse.DeletableGroupResult:
    return DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=code)


@register(
    DeleteGroupsRequest,
    0,
    2,
    needs=(groups(Operation.DELETE, lambda request, _: request.groups_names),),
    each=Each("groups_names", "results", _outcome, _places),
    bound=OF_CHANGES,
)
def handle(_: DeleteGroupsRequest, context: RequestContext) -> AnswerItem:
    """Delete groups."""
    groups, numbers = context.broker.groups, count()

    async def delete(name: str) -> DeleteGroupsResponse.DeletableGroupResult | None:
        error = await groups.ready(name)
        if error is not None and await groups.drop_offline(name):
            context.changed(f"group {name} deleted, which could not be read")
            return None
        if error is None and not groups.exists(name):
            error = GroupError.GROUP_ID_NOT_FOUND
        if error is None:
            part = groups.part(name)
            states = part.states() if isinstance(part, ShareGroup) else ()
            result = await context.ask_group(name, DeleteGroup(token=(context, next(numbers))))
            assert isinstance(result, DeleteGroupResult)
            error = result.error
            if error is None:
                await context.broker.shares.drop(name, states)
                context.changed(f"group {name} deleted")
        return _outcome(name, code_of(error), None)

    return delete
