"""DescribeCluster (60), versions 0-1 (KIP-700).

Behavior
- Returns the live brokers. The broker that responds is the controller, as in Metadata. Endpoint type 2 (controllers) is
  UNSUPPORTED_ENDPOINT_TYPE.
"""

from headrace.kafka.acl_codes import UNASKED, authorized_on_cluster
from headrace.kafka.errors import Code
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import DescribeClusterRequest, DescribeClusterResponse
from headrace.security.access.required_acls import ANYBODY

_BROKERS = 1


@register(DescribeClusterRequest, 0, 1, needs=ANYBODY)
def handle(request: DescribeClusterRequest, context: RequestContext) -> None:
    """Return the cluster's id, its brokers and its controller."""
    broker = context.broker
    if request.endpoint_type != _BROKERS:
        context.answer(
            DescribeClusterResponse(
                error_code=Code.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this server answers for brokers only",
                endpoint_type=request.endpoint_type,
                cluster_id=broker.cluster_id,
                brokers=[],
            )
        )
        return
    context.answer(
        DescribeClusterResponse(
            cluster_id=broker.cluster_id,
            controller_id=broker.node_id,
            cluster_authorized_operations=authorized_on_cluster(context)
            if request.include_cluster_authorized_operations
            else UNASKED,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=host, port=port)
                for node_id, host, port in context.nodes
            ],
        )
    )
