"""The leader that a response names is one that the client can use."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.kafka.current_leader import CurrentLeaders
from headrace.membership.view import Leader
from headrace.protocol.messages import FetchResponse, ProduceResponse

OWN = 1


def topic_of(*leaders: Leader) -> Any:
    return SimpleNamespace(partitions=[SimpleNamespace(named=leader) for leader in leaders])


@pytest.fixture(params=[FetchResponse, ProduceResponse])
def response(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def leaders(response: Any) -> CurrentLeaders:
    nodes = [(1, "a", 9092), (2, "b", 9093), (3, "c", 9094)]
    context: Any = SimpleNamespace(nodes=nodes, broker=SimpleNamespace(node_id=OWN))
    return CurrentLeaders(context, response)


def test_another_broker_with_its_epoch_and_address(leaders: CurrentLeaders, response: Any) -> None:
    topic = topic_of(Leader(4, 3), Leader(5, 3), Leader(6, OWN))
    found = [leaders.find(topic, index) for index in range(3)]
    assert found == [
        response.LeaderIdAndEpoch(leader_id=3, leader_epoch=4),
        response.LeaderIdAndEpoch(leader_id=3, leader_epoch=5),
        None,
    ]
    assert leaders.endpoints() == [response.NodeEndpoint(node_id=3, host="c", port=9094)]


@pytest.mark.parametrize("leader", [Leader(-1, -1), Leader(4, -1), Leader(-1, 2), Leader(4, OWN)])
def test_no_leader_and_this_broker_are_not_named(leaders: CurrentLeaders, leader: Leader) -> None:
    assert leaders.find(topic_of(leader), 0) is None
    assert leaders.endpoints() == []


@pytest.mark.parametrize("index", [-1, 1])
def test_an_unknown_partition_has_none(leaders: CurrentLeaders, index: int) -> None:
    assert leaders.find(topic_of(Leader(4, 2)), index) is None
    assert leaders.find(None, 0) is None
    assert leaders.endpoints() == []


def test_a_leader_that_has_gone_has_no_address(leaders: CurrentLeaders) -> None:
    assert leaders.find(topic_of(Leader(4, 9)), 0) is not None
    assert leaders.endpoints() == []
