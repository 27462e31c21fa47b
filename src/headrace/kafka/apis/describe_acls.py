"""DescribeAcls (29), versions 1-3 (KIP-140).

Behavior
- Lists the ACLs of this virtual cluster that match a filter. Without `authorizer.class.name`: SECURITY_DISABLED.

Version notes
- 1: prefixes (KIP-290). 2: flexible. 3: ACLs of users (KIP-373).
"""

from headrace.broker.runtime.scheduler import TimeSlice
from headrace.kafka.acl_codes import Codes, check_enabled, filter_of
from headrace.kafka.errors import RequestError
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeAclsRequest, DescribeAclsResponse
from headrace.security.access.acls import Acl, Pattern
from headrace.security.access.required_acls import Operation, ResourceType

Resource = DescribeAclsResponse.DescribeAclsResource
Description = DescribeAclsResponse.AclDescription
_ACL_BYTES = 300
"""Memory for one ACL while the response is built, without its texts."""


@register(DescribeAclsRequest, 1, 3, needs=(cluster(Operation.DESCRIBE),))
async def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """List ACLs."""
    broker = context.broker
    try:
        check_enabled(broker.access.enabled)
        wanted = filter_of(request)
    except RequestError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=str(error), resources=[])
    pace = context.pace()
    found = await broker.access.acls(broker.cluster, wanted, pace)
    await context.reserve(sum(map(_size, found)))
    by_resource: dict[tuple[ResourceType, str, Pattern], list[Acl]] = {}
    async for acl in pace.each(found):
        by_resource.setdefault((acl.type, acl.name, acl.pattern), []).append(acl)
    return DescribeAclsResponse(resources=[await _resource(acls, pace) for acls in by_resource.values()])


def _size(acl: Acl) -> int:
    return _ACL_BYTES + 2 * (len(acl.name) + len(acl.principal) + len(acl.host))


async def _resource(acls: list[Acl], pace: TimeSlice) -> Resource:
    codes = Codes.of(acls[0])
    return Resource(
        resource_type=codes.type,
        resource_name=acls[0].name,
        pattern_type=codes.pattern,
        acls=[
            Description(
                principal=acl.principal, host=acl.host, operation=code.operation, permission_type=code.permission
            )
            async for acl in pace.each(acls)
            for code in (Codes.of(acl),)
        ],
    )
