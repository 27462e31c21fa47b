"""DeleteAcls (31), versions 1-3 (KIP-140).

Behavior
- Deletes every ACL that a filter matches, on this broker before the response, and on others within a second.
- Filters that match more than 10,000 ACLs in total are INVALID_REQUEST, and no ACL is deleted. As in Kafka, an ACL that
  several filters match counts once.
- Without `authorizer.class.name`: SECURITY_DISABLED.

Version notes
- 1: prefixes (KIP-290). 2: flexible. 3: ACLs of users (KIP-373).
"""

from headrace.broker.admin.acl_authorizer import TooManyAcls
from headrace.broker.runtime.scheduler import TimeSlice
from headrace.kafka.acl_codes import Codes, check_enabled, filter_of
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DeleteAclsRequest, DeleteAclsResponse
from headrace.security.access.acls import Acl, AclFilter
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

Result = DeleteAclsResponse.DeleteAclsFilterResult
Matching = DeleteAclsResponse.DeleteAclsMatchingAcl


def _no(request: DeleteAclsRequest, _: RequestContext, no: No) -> DeleteAclsResponse:
    return DeleteAclsResponse(
        filter_results=[Result(error_code=no.code, error_message=no.message, matching_acls=[]) for _ in request.filters]
    )


@register(DeleteAclsRequest, 1, 3, needs=(cluster(Operation.ALTER),), refusal=whole(_no))
async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Delete ACLs."""
    access, in_cluster = context.broker.access, context.broker.cluster
    pace = context.pace()
    asked: list[AclFilter | RequestError] = []
    async for given in pace.each(request.filters):
        try:
            check_enabled(access.enabled)
            asked.append(filter_of(given))
        except RequestError as error:
            asked.append(error)
    failed: Exception | None = None
    gone: list[list[Acl]] = []
    try:
        gone = await access.delete(in_cluster, [each for each in asked if isinstance(each, AclFilter)], pace)
    except TooManyAcls as error:
        failed = RequestError(Code.INVALID_REQUEST, str(error))
    except TopicError as error:
        failed = error
    once = dict.fromkeys(acl for some in gone for acl in some)
    await context.all_changed(f"access rule of {in_cluster} deleted: {acl}" for acl in once)
    found = iter(gone)
    return DeleteAclsResponse(
        filter_results=[
            _refused(each)
            if isinstance(each, RequestError)
            else _refused(failed)
            if failed
            else await _deleted(next(found), pace)
            async for each in pace.each(asked)
        ]
    )


def _refused(error: Exception) -> Result:
    return Result(error_code=code_of(error), error_message=str(error), matching_acls=[])


async def _deleted(acls: list[Acl], pace: TimeSlice) -> Result:
    return Result(
        error_message=None,
        matching_acls=[
            Matching(
                error_message=None,
                resource_type=codes.type,
                resource_name=acl.name,
                pattern_type=codes.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=codes.operation,
                permission_type=codes.permission,
            )
            async for acl in pace.each(acls)
            for codes in (Codes.of(acl),)
        ],
    )
