"""CreateAcls (30), versions 1-3 (KIP-140).

Behavior
- ACLs apply on this broker before the response, and on others within a second. An ACL that exists already is no error.
- An ACL that can never match is INVALID_REQUEST. The other ACLs of the request are created.
- More than 10,000 ACLs in a virtual cluster are POLICY_VIOLATION. Without `authorizer.class.name`: SECURITY_DISABLED.

Version notes
- 1: prefixes (KIP-290). 2: flexible. 3: ACLs of users (KIP-373).
"""

from headrace.broker.admin.acl_authorizer import TooManyAcls
from headrace.kafka.acl_codes import acl_of, check_enabled
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import CreateAclsRequest, CreateAclsResponse
from headrace.security.access.acls import Acl
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

Result = CreateAclsResponse.AclCreationResult


def _no(request: CreateAclsRequest, _: RequestContext, no: No) -> CreateAclsResponse:
    return CreateAclsResponse(results=[Result(error_code=no.code, error_message=no.message) for _ in request.creations])


@register(CreateAclsRequest, 1, 3, needs=(cluster(Operation.ALTER),), refusal=whole(_no))
async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create ACLs."""
    access, in_cluster = context.broker.access, context.broker.cluster
    pace = context.pace()
    made: list[Acl | RequestError] = []
    async for creation in pace.each(request.creations):
        try:
            check_enabled(access.enabled)
            made.append(acl_of(creation))
        except RequestError as error:
            made.append(error)
    acls = [each for each in made if isinstance(each, Acl)]
    failed: Exception | None = None
    try:
        if acls:
            await access.create(in_cluster, acls, pace)
    except TooManyAcls as error:
        failed = RequestError(Code.POLICY_VIOLATION, str(error))
    except TopicError as error:
        failed = error
    if failed is None:
        await context.all_changed(f"access rule of {in_cluster} created: {acl}" for acl in acls)
    results = [_result(each if isinstance(each, RequestError) else failed) async for each in pace.each(made)]
    return CreateAclsResponse(results=results)


def _result(error: Exception | None) -> Result:
    return Result(error_code=code_of(error), error_message=None if error is None else str(error))
