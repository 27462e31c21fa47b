"""DescribeUserScramCredentials (50), version 0 (KIP-554).

Behavior
- Returns the mechanisms and iterations of users' passwords, and never the stored credentials. No users selects all.
- RESOURCE_NOT_FOUND: a user without a password. DUPLICATE_RESOURCE: a user that is named twice.
"""

from collections import Counter

from headrace.broker.admin.users import Users
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
from headrace.security.access.required_acls import Operation

_Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_USER_BYTES = 500
"""Memory for one user while the response is built, without the name."""
_Info = DescribeUserScramCredentialsResponse.CredentialInfo


@register(DescribeUserScramCredentialsRequest, 0, 0, needs=(cluster(Operation.DESCRIBE),))
async def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """List the credentials of users."""
    users = context.broker.users
    if users is None:
        return DescribeUserScramCredentialsResponse(
            error_code=Code.UNSUPPORTED_SASL_MECHANISM,
            error_message="users are kept for the whole server: not in a virtual cluster",
            results=[],
        )
    await context.turn()
    asked = users.names if not request.users else [user.name for user in request.users]
    times = Counter(asked)
    await context.reserve(len(times) * _USER_BYTES + 2 * sum(map(len, times)))
    results = [_told(users, name, times[name]) async for name in context.pace().each(dict.fromkeys(asked))]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _told(users: Users, name: str, times: int) -> _Result:
    found = users.find(name)
    if times > 1:
        return _refused(name, Code.DUPLICATE_RESOURCE, f"The same user twice in the same request: {name}")
    if not found:
        return _refused(name, Code.RESOURCE_NOT_FOUND, f"Attempt to describe a user that does not exist: {name}")
    infos = [_Info(mechanism=mechanism.number, iterations=kept.iterations) for mechanism, kept in found.items()]
    return _Result(user=name, error_message=None, credential_infos=infos)


def _refused(name: str, code: Code, message: str) -> _Result:
    return _Result(user=name, error_code=code, error_message=message, credential_infos=[])
