"""DeleteShareGroupOffsets, and the end of a share group, on the wire (reference: Apache Kafka 4.3.1)."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Sharer, acquired, configure, delete, described

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


@pytest.fixture
def sharer(wire: Wire, topic: str) -> Sharer:
    configure(wire, topic, share_auto_offset_reset="earliest")
    return Sharer(wire, topic, wire.create(topic, 2))


def test_deletion(wire: Wire, topic: str, sharer: Sharer) -> None:
    assert delete(wire, topic, topic).error_code == Code.GROUP_ID_NOT_FOUND
    wire.produce(topic, batch(*[b"x"] * 4))
    sharer.beat()
    sharer.fetch(0)
    sharer.acknowledge({0: [(0, 3, [ACCEPT])]}, epoch=-1)
    assert delete(wire, topic, topic).error_code == Code.NON_EMPTY_GROUP
    sharer.beat(epoch=-1)
    answer = delete(wire, topic, topic, "nowhere")
    assert [each.error_code for each in answer.responses] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert answer.responses[1].error_message == "There is no offset information to delete."
    assert described(wire, topic) == {}
    sharer.session = sharer.epoch = 0
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(0, 3, 1)], "it begins again"


def test_a_deleted_group_leaves_nothing(wire: Wire, topic: str, sharer: Sharer) -> None:
    wire.produce(topic, batch(*[b"x"] * 4))
    sharer.beat()
    sharer.fetch(0)
    sharer.acknowledge({0: [(0, 3, [ACCEPT])]}, epoch=-1)
    sharer.beat(epoch=-1)
    assert wire.ask(m.DeleteGroupsRequest(groups_names=[topic]), 2).results[0].error_code == 0
    sharer.session = sharer.epoch = 0
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(0, 3, 1)]
