"""Numbers of ACLs in the protocol, and authorized operations (KIP-430).

Source: Kafka's `ResourceType`, `PatternType`, `AclOperation` and `AclPermissionType`.
"""

from typing import Any, NamedTuple

from headrace.kafka.errors import Code, RequestError
from headrace.kafka.server.request_context import RequestContext
from headrace.security.access.acls import Acl, AclFilter, InvalidAcl, Pattern
from headrace.security.access.required_acls import CLUSTER_NAME, SUPPORTED, Operation, ResourceType

_ANY, _ALL, _MATCH = 1, 2, 2
TYPES = {
    2: ResourceType.TOPIC,
    3: ResourceType.GROUP,
    4: ResourceType.CLUSTER,
    5: ResourceType.TRANSACTIONAL_ID,
    6: ResourceType.DELEGATION_TOKEN,
    7: ResourceType.USER,
}
PATTERNS = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
OPERATIONS = {
    _ALL: None,
    3: Operation.READ,
    4: Operation.WRITE,
    5: Operation.CREATE,
    6: Operation.DELETE,
    7: Operation.ALTER,
    8: Operation.DESCRIBE,
    9: Operation.CLUSTER_ACTION,
    10: Operation.DESCRIBE_CONFIGS,
    11: Operation.ALTER_CONFIGS,
    12: Operation.IDEMPOTENT_WRITE,
    13: Operation.CREATE_TOKENS,
    14: Operation.DESCRIBE_TOKENS,
    15: Operation.TWO_PHASE_COMMIT,
}
PERMISSIONS = {2: False, 3: True}
_TYPE_CODES = {kind: code for code, kind in TYPES.items()}
_PATTERN_CODES = {pattern: code for code, pattern in PATTERNS.items()}
_OPERATION_CODES = {operation: code for code, operation in OPERATIONS.items()}
_PERMISSION_CODES = {allow: code for code, allow in PERMISSIONS.items()}
UNASKED = -(2**31)
"""The client did not request them."""
_BITS = {operation: 1 << code for code, operation in OPERATIONS.items() if operation is not None}


class Codes(NamedTuple):
    """The numbers of one ACL."""

    type: int
    pattern: int
    operation: int
    permission: int

    @classmethod
    def of(cls, acl: Acl) -> "Codes":
        """Return those of an ACL."""
        return cls(
            _TYPE_CODES[acl.type],
            _PATTERN_CODES[acl.pattern],
            _OPERATION_CODES[acl.operation],
            _PERMISSION_CODES[acl.allow],
        )


def _known(what: str, code: int, codes: Any) -> None:
    if code not in codes:
        raise RequestError(Code.INVALID_REQUEST, f"{code} is no {what} that a rule can have")


def acl_of(creation: Any) -> Acl:
    """Return the ACL to create. Raises RequestError (INVALID_REQUEST)."""
    _known("resource type", creation.resource_type, TYPES)
    _known("pattern type", creation.resource_pattern_type, PATTERNS)
    _known("operation", creation.operation, OPERATIONS)
    _known("permission type", creation.permission_type, PERMISSIONS)
    made = Acl(
        type=TYPES[creation.resource_type],
        name=creation.resource_name,
        pattern=PATTERNS[creation.resource_pattern_type],
        principal=creation.principal,
        host=creation.host,
        operation=OPERATIONS[creation.operation],
        allow=PERMISSIONS[creation.permission_type],
    )
    try:
        made.check()
    except InvalidAcl as error:
        raise RequestError(Code.INVALID_REQUEST, str(error)) from None
    return made


def filter_of(given: Any) -> AclFilter:
    """Return a filter. Raises RequestError (INVALID_REQUEST)."""
    _known("resource type", given.resource_type_filter, {_ANY, *TYPES})
    _known("pattern type", given.pattern_type_filter, {_ANY, _MATCH, *PATTERNS})
    _known("operation", given.operation, {_ANY, *OPERATIONS})
    _known("permission type", given.permission_type, {_ANY, *PERMISSIONS})
    return AclFilter(
        type=TYPES.get(given.resource_type_filter),
        name=given.resource_name_filter,
        pattern=PATTERNS.get(given.pattern_type_filter),
        matching=given.pattern_type_filter == _MATCH,
        principal=given.principal_filter,
        host=given.host_filter,
        operation=OPERATIONS.get(given.operation),
        every_operation=given.operation == _ALL,
        allow=PERMISSIONS.get(given.permission_type),
    )


def check_enabled(enabled: bool) -> None:
    """Raise RequestError (SECURITY_DISABLED) if ACLs are disabled."""
    if not enabled:
        raise RequestError(Code.SECURITY_DISABLED, "No Authorizer is configured.")


def authorized(context: RequestContext, kind: ResourceType, name: str) -> int:
    """Return the client's operations, one bit each (KIP-430)."""
    broker = context.broker
    grants = broker.access.grants(context.principal, context.channel.client_host, broker.cluster)
    return sum(_BITS[each] for each in SUPPORTED[kind] if grants is None or grants.may(each, kind, name))


def authorized_on_cluster(context: RequestContext) -> int:
    """Return the operations on the cluster."""
    return authorized(context, ResourceType.CLUSTER, CLUSTER_NAME)
