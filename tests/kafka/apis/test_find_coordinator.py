"""FindCoordinator: groups have this broker, transactions have none."""

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    FindCoordinatorRequest,
)


def test_the_coordinator_is_the_broker_in_the_metadata(wire: Wire) -> None:
    [node] = wire.metadata().brokers
    for version in range(5):
        answer = wire.ask(FindCoordinatorRequest(key="one", coordinator_keys=["one", "two"]), version)
        found = answer.coordinators if version >= 4 else [answer]
        assert len(found) == (2 if version >= 4 else 1)
        for one in found:
            assert (one.error_code, one.node_id, one.host, one.port) == (0, node.node_id, node.host, node.port)


@pytest.mark.parametrize("version", range(1, 5))
def test_transactions_have_no_coordinator(wire: Wire, version: int) -> None:
    answer = wire.ask(FindCoordinatorRequest(key="t", coordinator_keys=["t"], key_type=1), version)
    found = answer.coordinators[0] if version >= 4 else answer
    # What says "not available" is asked again until the client times out.
    assert found.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # The code alone sends people looking for access rules.
    assert "no transactions" in found.error_message
    assert "leave transactional.id out" in found.error_message
