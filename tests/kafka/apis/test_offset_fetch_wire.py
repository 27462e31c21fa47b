"""OffsetFetch on the wire: positions of one group, of many, and of none."""

from uuid import UUID

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import IDS_FROM, commit, committed

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    ListGroupsRequest,
    OffsetFetchRequest,
)


@pytest.mark.parametrize("version", range(1, 11))
def test_positions_of_an_unknown_group_are_none_without_an_error(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    assert committed(wire, f"{topic}-unknown", topic, version=version) == (-1, "", 0)
    unknown = 0 if version < IDS_FROM else Code.UNKNOWN_TOPIC_ID
    assert committed(wire, f"{topic}-unknown", f"{topic}-gone", version=version) == (-1, "", unknown)
    listed = wire.ask(ListGroupsRequest(), 4).groups
    assert f"{topic}-unknown" not in [one.group_id for one in listed], "asking makes no group"


@pytest.mark.parametrize("version", range(2, 8))
def test_all_positions_of_a_group_by_null_topics(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    assert commit(wire, topic, {(topic, 0): 5}) == [0]
    answer = wire.ask(OffsetFetchRequest(group_id=topic, topics=None), version)
    assert [(one.name, one.partitions[0].committed_offset) for one in answer.topics] == [(topic, 5)]
    assert wire.ask(OffsetFetchRequest(group_id=topic, topics=[]), version).topics == []
    assert wire.ask(OffsetFetchRequest(group_id=f"{topic}-unknown", topics=None), version).topics == []


def test_positions_by_topic_ids(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    commit(wire, topic, {(topic, 0): 5})
    known, unknown = wire.topic_id(topic), UUID(int=5)
    asked = [
        OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1, 0])
        for topic_id in (unknown, known, unknown)
    ]
    groups = [
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=topic, topics=asked),
        OffsetFetchRequest.OffsetFetchRequestGroup(group_id=f"{topic}-other", topics=None),
    ]
    first, other = wire.ask(OffsetFetchRequest(groups=groups), 10).groups
    assert (first.error_code, other.topics) == (0, [])
    found = {each.topic_id: [(one.committed_offset, one.error_code) for one in each.partitions]
             for each in first.topics}  # fmt: skip
    assert found == {known: [(5, 0), (-1, 0)], unknown: [(-1, Code.UNKNOWN_TOPIC_ID)] * 2}
    every = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=topic, topics=None)
    [group] = wire.ask(OffsetFetchRequest(groups=[every]), 10).groups
    assert [(each.topic_id, each.partitions[0].committed_offset) for each in group.topics] == [(known, 5)]


def test_positions_of_many_groups_at_once(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for number in range(3):
        commit(wire, f"{topic}-{number}", {(topic, 0): number})
    names = [f"{topic}-{number}" for number in (2, 0, 1, 9)]
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    answer = wire.ask(OffsetFetchRequest(groups=groups, require_stable=True), 8)
    assert [one.group_id for one in answer.groups] == names
    found = [[one.partitions[0].committed_offset for one in group.topics] for group in answer.groups]
    assert found == [[2], [0], [1], []]


def test_positions_go_with_their_topic(wire: Wire, topic: str) -> None:
    wire.create(topic)
    commit(wire, topic, {(topic, 0): 4})
    wire.delete(topic)
    wire.create(topic)
    assert committed(wire, topic, topic) == (-1, "", 0)
