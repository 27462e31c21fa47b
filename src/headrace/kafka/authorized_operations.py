"""What somebody may do with a resource, as answers tell it to who asks for it (KIP-430): a bit for each operation."""

from headrace.kafka.acl_codes import OPERATIONS
from headrace.kafka.server.request_context import RequestContext
from headrace.security.access.required_acls import CLUSTER_NAME, SUPPORTED, ResourceType

UNASKED = -(2**31)
"""Nobody has asked."""
_BITS = {operation: 1 << code for code, operation in OPERATIONS.items() if operation is not None}


def authorized(context: RequestContext, kind: ResourceType, name: str) -> int:
    """The operations that are granted to who asks; all that there are where access rules do not hold."""
    broker = context.broker
    grants = broker.access.grants(context.principal, context.channel.client_host, broker.cluster)
    return sum(_BITS[each] for each in SUPPORTED[kind] if grants is None or grants.may(each, kind, name))


def authorized_on_cluster(context: RequestContext) -> int:
    """The same of the cluster; nothing where not even Describe is granted."""
    return authorized(context, ResourceType.CLUSTER, CLUSTER_NAME)
