"""Offsets of share groups on the wire: describe, alter and delete them (reference: Apache Kafka 4.3.1)."""

from typing import Any

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import ACCEPT, Sharer, acquired, configure

from headrace.kafka.errors import Code
from headrace.protocol import messages as m

Alter = m.AlterShareGroupOffsetsRequest
Describe = m.DescribeShareGroupOffsetsRequest
DescribedGroup = Describe.DescribeShareGroupOffsetsRequestGroup
DescribedTopic = Describe.DescribeShareGroupOffsetsRequestTopic


def alter(wire: Wire, group: str, topic: str, **offsets: int) -> Any:
    """Alter partitions `p0`, `p1` ..."""
    parts = [
        Alter.AlterShareGroupOffsetsRequestPartition(partition_index=int(name[1:]), start_offset=offset)
        for name, offset in offsets.items()
    ]
    asked = Alter.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=parts)
    return wire.ask(Alter(group_id=group, topics=[asked]), 0)


def described(wire: Wire, group: str, *named: tuple[str, list[int]], version: int = 1) -> dict[tuple[str, int], Any]:
    """Start offset and lag by topic and partition. Without names: all topics."""
    topics = [DescribedTopic(topic_name=name, partitions=indexes) for name, indexes in named] or None
    (found,) = wire.ask(Describe(groups=[DescribedGroup(group_id=group, topics=topics)]), version).groups
    assert found.error_code == 0
    return {
        (topic.topic_name, part.partition_index): part.error_code or (part.start_offset, part.lag)
        for topic in found.topics
        for part in topic.partitions
    }


def delete(wire: Wire, group: str, *topics: str) -> Any:
    request = m.DeleteShareGroupOffsetsRequest
    named = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    return wire.ask(request(group_id=group, topics=named), 0)


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


def test_only_without_members(wire: Wire, topic: str, sharer: Sharer) -> None:
    wire.produce(topic, batch(*[b"x"] * 10))
    created = alter(wire, topic, topic, p0=8, p9=1)
    (parts,) = (each.partitions for each in created.responses)
    assert [each.error_code for each in parts] == [0, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert described(wire, topic)[topic, 0] == (8, 2)
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(8, 9, 1)]
    refused = alter(wire, topic, topic, p0=1)
    assert (refused.error_code, refused.responses) == (Code.NON_EMPTY_GROUP, [])
    sharer.beat(epoch=-1)
    assert alter(wire, topic, topic, p0=1).error_code == 0
    unknown = alter(wire, topic, "nowhere", p0=1)
    assert unknown.responses[0].partitions[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_that_serves_the_group_begins_again(wire: Wire, topic: str, sharer: Sharer) -> None:
    """It has the old state in memory, which its next write reveals (trap 26)."""
    wire.produce(topic, batch(*[b"x"] * 4))
    sharer.beat()
    assert acquired(sharer.fetch(0)) == [(0, 3, 1)]
    sharer.beat(epoch=-1)  # the session remains
    alter(wire, topic, topic, p0=2)
    sharer.acknowledge({0: [(0, 3, [ACCEPT])]})
    assert described(wire, topic)[topic, 0] == (2, 2)
    assert acquired(sharer.fetch(wait_ms=5_000)) == [(2, 3, 1)]
    assert described(wire, topic)[topic, 0] == (2, 2)


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
