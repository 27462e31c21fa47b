"""DescribeShareGroupOffsets on the wire (reference: Apache Kafka 4.3.1)."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Describe, DescribedGroup, DescribedTopic, Sharer, configure, described

from headrace.kafka.errors import Code
from headrace.testing import InProcessServer


@pytest.fixture
def sharer(wire: Wire, topic: str) -> Sharer:
    configure(wire, topic, share_auto_offset_reset="earliest")
    return Sharer(wire, topic, wire.create(topic, 2))


def test_where_a_group_stands(wire: Wire, topic: str, sharer: Sharer) -> None:
    assert described(wire, topic) == {}, "a group that does not exist has no topics"
    sharer.beat()
    assert described(wire, topic) == {(topic, 0): (-1, -1), (topic, 1): (-1, -1)}
    wire.produce(topic, batch(*[b"x"] * 10))
    sharer.fetch(0)
    assert described(wire, topic, (topic, [0, 7])) == {
        (topic, 0): (0, 10),
        (topic, 7): (-1, -1),
    }
    sharer.acknowledge({0: [(0, 3, [ACCEPT]), (6, 6, [ACCEPT])]})
    assert described(wire, topic)[topic, 0] == (4, 5)
    assert described(wire, topic, version=0)[topic, 0] == (4, -1)


def test_what_is_named_often_is_described_once(wire: Wire, topic: str, sharer: Sharer) -> None:
    """A small request must not have an enormous response."""
    sharer.beat()
    often = DescribedGroup(group_id=topic, topics=[DescribedTopic(topic_name=topic, partitions=[0] * 10)])
    (group,) = wire.ask(Describe(groups=[often] * 10), 1).groups
    assert [[part.partition_index for part in each.partitions] for each in group.topics] == [[0]]


def test_groups_that_exceed_the_memory_for_responses_are_refused() -> None:
    with InProcessServer(headrace_reads_bytes=1 << 20) as server, Wire(server.kafka) as wire:
        wire.create("wide", 1_500)
        for name in ("a", "b"):
            Sharer(wire, name, "wide").beat()
        asked = [DescribedGroup(group_id=name, topics=None) for name in ("a", "b")]
        groups = wire.ask(Describe(groups=asked), 1).groups
        assert [each.error_code for each in groups] == [0, Code.POLICY_VIOLATION]
