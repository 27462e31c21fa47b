"""OffsetCommit on the wire: accepted members and fields."""

from uuid import UUID

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, committed, join, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import OffsetCommitRequest


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_without_a_member(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    assert commit(wire, topic, {(topic, 0): 7}, metadata="a note", version=version) == [0]
    assert committed(wire, topic, topic) == (7, "a note", 0)


def test_a_commit_takes_the_partitions_that_exist(wire: Wire, topic: str) -> None:
    wire.create(topic)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(wire, topic, {(f"{topic}-gone", 0): 1, (topic, 0): 2, (topic, 5): 3}) == [unknown, 0, unknown]
    assert committed(wire, topic, topic)[0] == 2


def test_a_commit_by_topic_ids(wire: Wire, topic: str) -> None:
    wire.create(topic)
    known = wire.topic_id(topic)
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=2, committed_metadata=""
        )
        for index in (0, 5)
    ]
    named = [
        OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=topic_id, partitions=partitions)
        for topic_id in (known, UUID(int=5), UUID(int=6))
    ]
    answer = wire.ask(OffsetCommitRequest(group_id=topic, topics=named), 10)
    codes = {each.topic_id: [one.error_code for one in each.partitions] for each in answer.topics}
    unknown = [Code.UNKNOWN_TOPIC_ID] * 2
    assert codes == {known: [0, Code.UNKNOWN_TOPIC_OR_PARTITION], UUID(int=5): unknown, UUID(int=6): unknown}
    assert committed(wire, topic, topic)[0] == 2


def test_a_note_has_a_limit_and_may_be_null(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert commit(wire, topic, {(topic, 0): 1}, metadata="x" * 4096) == [0]
    assert commit(wire, topic, {(topic, 0): 2}, metadata="x" * 4097) == [Code.OFFSET_METADATA_TOO_LARGE]
    assert committed(wire, topic, topic) == (1, "x" * 4096, 0)
    assert commit(wire, topic, {(topic, 0): 3}, metadata=None) == [0]
    assert committed(wire, topic, topic) == (3, "", 0)


def test_a_commit_from_outside_is_refused_while_the_group_has_members(wire: Wire, topic: str) -> None:
    wire.create(topic)
    joined = join(wire, topic)
    sync(wire, topic, joined, {joined.member_id: b"mine"})
    assert commit(wire, topic, {(topic, 0): 1}) == [Code.UNKNOWN_MEMBER_ID]
    member, generation = joined.member_id, joined.generation_id
    assert commit(wire, topic, {(topic, 0): 1}, member=member, generation=generation + 1) == [Code.ILLEGAL_GENERATION]
    assert commit(wire, topic, {(topic, 0): 1}, member="nobody", generation=generation) == [Code.UNKNOWN_MEMBER_ID]
    assert commit(wire, topic, {(topic, 0): 1}, member=member, generation=generation) == [0]
