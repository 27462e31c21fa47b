"""DescribeProducers: what the leader of a partition remembers."""

from collections.abc import Iterator

import pytest
from tests.harness.wire import Wire
from tests.kafka.transactional import Producer

from headrace.kafka.errors import Code
from headrace.protocol.messages import DescribeProducersRequest, DescribeProducersResponse
from headrace.testing import InProcessServer


@pytest.fixture
def wire(transactional_server: InProcessServer) -> Iterator[Wire]:
    with Wire(transactional_server.kafka) as client:
        yield client


def describe(wire: Wire, topic: str, *partitions: int) -> list[DescribeProducersResponse.PartitionResponse]:
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[*partitions])
    [found] = wire.ask(DescribeProducersRequest(topics=[asked]), 0).topics
    assert found.name == topic
    return list(found.partitions)


def test_producers_are_described_with_their_open_transaction(wire: Wire) -> None:
    topic = wire.create("described")
    plain, transactional = Producer(wire, topic, 1), Producer(wire, topic, 2)
    plain.send(b"a", transactional=False)
    plain.send(b"b", transactional=False)
    transactional.send(b"c", epoch=4)
    [found] = describe(wire, topic, 0)
    assert found.error_code == Code.NONE
    states = {each.producer_id: each for each in found.active_producers}
    assert [
        (each.producer_epoch, each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
        for each in (states[1], states[2])
    ] == [(0, 1, -1, -1), (4, 0, -1, 2)]
    assert all(each.last_timestamp > 0 for each in states.values())
    transactional.end(commit=True, epoch=4)
    assert transactional.described() == (4, 0, -1)


def test_each_partition_has_its_own_error(wire: Wire) -> None:
    topic = wire.create("some")
    assert [each.error_code for each in describe(wire, topic, 0, 1)] == [Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert [each.error_code for each in describe(wire, "none", 0)] == [Code.UNKNOWN_TOPIC_OR_PARTITION]
