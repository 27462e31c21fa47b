"""OffsetFetch on the wire: positions of one group, of many, and of none."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, committed

from headrace.protocol.messages import (
    ListGroupsRequest,
    OffsetFetchRequest,
)


@pytest.mark.parametrize("version", range(1, 9))
def test_positions_of_an_unknown_group_are_none_without_an_error(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    assert committed(wire, f"{topic}-unknown", topic, version=version) == (-1, "", 0)
    assert committed(wire, f"{topic}-unknown", f"{topic}-gone", version=version) == (-1, "", 0)
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
