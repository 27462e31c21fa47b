"""DescribeCluster: the brokers and the cluster id (KIP-700)."""

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DescribeClusterRequest,
)
from headrace.testing import Server


@pytest.mark.parametrize("version", [0, 1])
def test_the_cluster_is_its_one_broker(wire: Wire, running: Server, version: int) -> None:
    answer = wire.ask(DescribeClusterRequest(), version)
    [node] = answer.brokers
    assert (f"{node.host}:{node.port}", node.broker_id, answer.controller_id) == (running.kafka, 1, 1)
    assert answer.cluster_id == wire.metadata().cluster_id
    if version:
        refused = wire.ask(DescribeClusterRequest(endpoint_type=2), version)
        assert (refused.error_code, refused.brokers) == (Code.UNSUPPORTED_ENDPOINT_TYPE, [])
