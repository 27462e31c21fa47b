"""The leader that a response names is one that the client can use."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.kafka.current_leader import endpoints, leader_of
from headrace.membership.view import Leader
from headrace.protocol.messages import FetchResponse, ProduceResponse

OWN = 1


def topic_of(*leaders: Leader) -> Any:
    return SimpleNamespace(partitions=[SimpleNamespace(named=leader) for leader in leaders])


def test_another_broker_with_its_epoch() -> None:
    assert leader_of(topic_of(Leader(4, 2)), 0, OWN) == Leader(4, 2)


@pytest.mark.parametrize("leader", [Leader(-1, -1), Leader(4, -1), Leader(-1, 2), Leader(4, OWN)])
def test_no_leader_and_this_broker_are_not_named(leader: Leader) -> None:
    assert leader_of(topic_of(leader), 0, OWN) is None


@pytest.mark.parametrize("index", [-1, 1])
def test_an_unknown_partition_has_none(index: int) -> None:
    assert leader_of(topic_of(Leader(4, 2)), index, OWN) is None
    assert leader_of(None, index, OWN) is None


@pytest.mark.parametrize("node", [FetchResponse.NodeEndpoint, ProduceResponse.NodeEndpoint])
def test_only_the_addresses_of_named_brokers_are_given(node: Any) -> None:
    context: Any = SimpleNamespace(nodes=[(1, "a", 9092), (2, "b", 9093), (3, "c", 9094)])
    assert endpoints(node, [], context) == []
    assert endpoints(node, {3, 9}, context) == [node(node_id=3, host="c", port=9094)]
