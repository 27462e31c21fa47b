"""DescribeShareGroupOffsets on the wire (reference: Apache Kafka 4.3.1)."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Sharer, configure, described

from headrace.kafka.errors import Code


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
        (topic, 7): Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    sharer.acknowledge({0: [(0, 3, [ACCEPT]), (6, 6, [ACCEPT])]})
    assert described(wire, topic)[topic, 0] == (4, 5)
    assert described(wire, topic, version=0)[topic, 0] == (4, -1)
