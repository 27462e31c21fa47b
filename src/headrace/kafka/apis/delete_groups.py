"""DeleteGroups (42), versions 0-2.

Behavior
- Only a group without members goes, with its positions.

Version notes
- 2: flexible.
"""

from collections.abc import Iterator

from headrace.groups.effects import DeleteGroupResult
from headrace.groups.errors import GroupError
from headrace.groups.events import DeleteGroup
from headrace.kafka.denied import No, Place, parts
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import groups
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.security.access.required_acls import Operation, ResourceType


def _places(name: str, _: DeleteGroupsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.GROUP, name


def _no(name: str, no: No, _: RequestContext) -> DeleteGroupsResponse.DeletableGroupResult:
    return DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=no.code)


@register(
    DeleteGroupsRequest,
    0,
    2,
    needs=(groups(Operation.DELETE, lambda request, _: request.groups_names),),
    refusal=parts("groups_names", _places, _no, "results"),
    bound=OF_CHANGES,
)
async def handle(request: DeleteGroupsRequest, context: RequestContext) -> DeleteGroupsResponse:
    """Delete groups."""
    groups = context.broker.groups
    results = []
    async for index, name in context.parts(enumerate(request.groups_names)):
        error = await groups.ready(name)
        if error is not None and await groups.drop_offline(name):
            context.changed(f"group {name} deleted, which could not be read")
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=name))
            continue
        if error is None and not groups.exists(name):
            error = GroupError.GROUP_ID_NOT_FOUND
        if error is None:
            result = await context.ask_group(name, DeleteGroup(token=(context, index)))
            assert isinstance(result, DeleteGroupResult)
            error = result.error
            if error is None:
                context.changed(f"group {name} deleted")
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=code_of(error)))
    return DeleteGroupsResponse(results=results)
