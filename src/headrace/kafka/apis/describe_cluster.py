"""DescribeCluster (60), versions 0-1 (KIP-700).

Behavior
- One broker, which is the controller too. There is no endpoint for controllers alone (endpoint type 2):
  UNSUPPORTED_ENDPOINT_TYPE.
"""

from headrace.access.needs import ANYBODY
from headrace.kafka.codec.messages import DescribeClusterRequest, DescribeClusterResponse
from headrace.kafka.errors import Code
from headrace.kafka.exchange import Exchange
from headrace.kafka.registry import register

_BROKERS = 1


@register(DescribeClusterRequest, 0, 1, needs=ANYBODY)
def handle(request: DescribeClusterRequest, exchange: Exchange) -> None:
    """Tell the cluster's id, its broker and its controller."""
    broker = exchange.broker
    if request.endpoint_type != _BROKERS:
        exchange.answer(
            DescribeClusterResponse(
                error_code=Code.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="this server answers for brokers only",
                endpoint_type=request.endpoint_type,
                cluster_id=broker.cluster_id,
                brokers=[],
            )
        )
        return
    host, port = exchange.advertised
    exchange.answer(
        DescribeClusterResponse(
            cluster_id=broker.cluster_id,
            controller_id=broker.node_id,
            brokers=[DescribeClusterResponse.DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port)],
        )
    )
