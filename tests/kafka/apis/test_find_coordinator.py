"""FindCoordinator: groups and transactional ids have this broker."""

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


@pytest.mark.parametrize("version", range(1, 6))
def test_transactional_ids_have_a_coordinator(wire: Wire, version: int) -> None:
    [node] = wire.metadata().brokers
    answer = wire.ask(FindCoordinatorRequest(key="t", coordinator_keys=["t"], key_type=1), version)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.port) == (0, node.node_id, node.port)


def test_nothing_else_has_one(wire: Wire) -> None:
    [found] = wire.ask(FindCoordinatorRequest(coordinator_keys=["s"], key_type=2), 5).coordinators
    assert (found.error_code, found.node_id) == (Code.COORDINATOR_NOT_AVAILABLE, -1)
