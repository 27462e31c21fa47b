"""Groups and positions on the wire: what the pure tests of `tests/groups` cannot see (reference: KIP-394, KIP-345)."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from headrace.testing import Server, server

SESSION_MS = 30_000


@pytest.fixture
def other(running: Server) -> Iterator[Wire]:
    with Wire(running.kafka) as client:
        yield client


def join_request(
    group: str, member: str = "", *, instance: str | None = None, metadata: bytes = b"m", protocol: str = "range"
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=protocol, metadata=metadata)],
    )


def join(wire: Wire, group: str, *, instance: str | None = None, version: int = 7) -> Any:
    """Join with an empty member id, and again with the id that was given out; the last answer."""
    answer = wire.ask(join_request(group, instance=instance), version)
    if answer.error_code == Code.MEMBER_ID_REQUIRED:
        answer = wire.ask(join_request(group, answer.member_id), version)
    return answer


def sync(wire: Wire, group: str, joined: Any, assignments: dict[str, bytes] | None = None, *, version: int = 5) -> Any:
    return wire.ask(
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        ),
        version,
    )


def commit(
    wire: Wire,
    group: str,
    positions: dict[tuple[str, int], int],
    *,
    generation: int = -1,
    member: str = "",
    metadata: str | None = "",
    version: int = 8,
) -> list[int]:
    """Commit; the error codes in order."""
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
        for (topic, partition), offset in positions.items()
    ]
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )
    return [one.partitions[0].error_code for one in wire.ask(request, version).topics]


def committed(wire: Wire, group: str, topic: str, *, version: int = 8) -> tuple[int, str | None, int]:
    """Committed offset of partition 0, its note, and the error code."""
    if version >= 8:
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[asked])]
        [answer] = wire.ask(OffsetFetchRequest(groups=groups), version).groups
        assert answer.error_code == 0
    else:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
        answer = wire.ask(OffsetFetchRequest(group_id=group, topics=topics), version)
        assert version < 2 or answer.error_code == 0
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata, found.error_code


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


@pytest.mark.parametrize("version", range(2, 9))
def test_commits_without_a_member(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    assert commit(wire, topic, {(topic, 0): 7}, metadata="a note", version=version) == [0]
    assert committed(wire, topic, topic) == (7, "a note", 0)


def test_a_commit_takes_the_partitions_that_exist(wire: Wire, topic: str) -> None:
    wire.create(topic)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(wire, topic, {(f"{topic}-gone", 0): 1, (topic, 0): 2, (topic, 5): 3}) == [unknown, 0, unknown]
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


def test_positions_go_with_their_topic(wire: Wire, topic: str) -> None:
    wire.create(topic)
    commit(wire, topic, {(topic, 0): 4})
    wire.delete(topic)
    wire.create(topic)
    assert committed(wire, topic, topic) == (-1, "", 0)


@pytest.mark.parametrize("version", range(10))
def test_joining_by_version(wire: Wire, topic: str, version: int) -> None:
    first = wire.ask(join_request(topic), version)
    assert first.error_code == (Code.MEMBER_ID_REQUIRED if version >= 4 else 0)
    assert first.member_id
    joined = first if version < 4 else wire.ask(join_request(topic, first.member_id), version)
    assert (joined.error_code, joined.leader, joined.protocol_name) == (0, joined.member_id, "range")
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"m")]
    assert joined.generation_id == 1


@pytest.mark.parametrize("version", range(6))
def test_a_member_without_an_assignment_gets_empty_bytes(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic)
    answer = sync(wire, topic, joined, version=version)
    assert (answer.error_code, answer.assignment) == (0, b"")


def test_only_the_leader_gets_the_members(wire: Wire, other: Wire, topic: str) -> None:
    wire.send(join_request(topic), 3)
    other.send(join_request(topic), 3)
    answers = [wire.receive(), other.receive()]
    assert {one.generation_id for one in answers} == {1}, "members that start together share a generation"
    assert sorted(len(one.members) for one in answers) == [0, 2]
    leader = max(answers, key=lambda one: len(one.members))
    assert {one.leader for one in answers} == {leader.member_id}


def test_syncs_wait_for_the_leader(wire: Wire, other: Wire, topic: str) -> None:
    wire.send(join_request(topic), 3)
    other.send(join_request(topic), 3)
    mine, theirs = wire.receive(), other.receive()
    (leader, first), (follower, second) = (
        [(wire, mine), (other, theirs)] if mine.members else [(other, theirs), (wire, mine)]
    )
    follower.send(SyncGroupRequest(group_id=topic, generation_id=1, member_id=second.member_id, assignments=[]), 3)
    assert follower.is_silent(0.05)
    shares = {first.member_id: b"for the leader", second.member_id: b"for the other"}
    assert sync(leader, topic, first, shares, version=3).assignment == b"for the leader"
    assert follower.receive().assignment == b"for the other"


def test_a_lost_connection_leaves_the_member_in_its_group(wire: Wire, other: Wire, topic: str) -> None:
    joined = join(other, topic)
    sync(other, topic, joined, {joined.member_id: b"kept"})
    other.close()
    beat = HeartbeatRequest(group_id=topic, generation_id=joined.generation_id, member_id=joined.member_id)
    assert wire.ask(beat, 4).error_code == 0
    assert sync(wire, topic, joined).assignment == b"kept"


def test_a_held_join_ends_when_the_member_asks_on_another_connection(wire: Wire, other: Wire, topic: str) -> None:
    """A client whose connection broke asks again: its new request is the one that counts."""
    first = join(wire, topic)
    sync(wire, topic, first)
    newcomer = other.ask(join_request(topic), 7)
    other.send(join_request(topic, newcomer.member_id), 7)
    assert other.is_silent(0.05)
    with Wire(f"127.0.0.1:{other.socket.getpeername()[1]}") as third:
        third.send(join_request(topic, newcomer.member_id), 7)
        wire.send(join_request(topic, first.member_id), 7)
        assert third.receive().error_code == 0
    assert wire.receive().generation_id == 2


def test_fencing(wire: Wire, topic: str) -> None:
    joined = join(wire, topic)
    sync(wire, topic, joined)

    def beat(generation: int, member: str) -> int:
        request = HeartbeatRequest(group_id=topic, generation_id=generation, member_id=member)
        code: int = wire.ask(request, 4).error_code
        return code

    assert beat(joined.generation_id, joined.member_id) == 0
    assert beat(joined.generation_id + 1, joined.member_id) == Code.ILLEGAL_GENERATION
    assert beat(joined.generation_id, "nobody") == Code.UNKNOWN_MEMBER_ID
    assert wire.ask(join_request(topic, "nobody"), 7).error_code == Code.UNKNOWN_MEMBER_ID
    assert wire.ask(join_request(f"{topic}-unknown", "nobody"), 7).error_code == Code.UNKNOWN_MEMBER_ID
    inconsistent = wire.ask(join_request(topic, protocol="other"), 3)
    assert inconsistent.error_code == Code.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [1, 5_999, 1_800_001])
def test_session_timeouts_have_bounds(wire: Wire, topic: str, session_ms: int) -> None:
    request = join_request(topic)
    request.session_timeout_ms = session_ms
    assert wire.ask(request, 7).error_code == Code.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("version", [5, 7, 9])
def test_a_static_member_comes_back_without_a_rebalance(wire: Wire, other: Wire, topic: str, version: int) -> None:
    first = join(wire, topic, instance="one", version=version)
    assert first.error_code == 0
    sync(wire, topic, first, {first.member_id: b"kept"})
    back = join(other, topic, instance="one", version=version)
    assert (back.error_code, back.generation_id) == (0, first.generation_id)
    assert back.member_id != first.member_id
    if version >= 9:
        assert back.skip_assignment
        assert back.leader == back.member_id
    assert sync(other, topic, back).assignment == b"kept"
    old = HeartbeatRequest(
        group_id=topic, generation_id=first.generation_id, member_id=first.member_id, group_instance_id="one"
    )
    assert wire.ask(old, 4).error_code == Code.FENCED_INSTANCE_ID


@pytest.mark.parametrize("version", range(6))
def test_leaving_by_version(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic)
    sync(wire, topic, joined)
    member = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)
    nobody = LeaveGroupRequest.MemberIdentity(member_id="nobody")
    request = LeaveGroupRequest(group_id=topic, member_id=joined.member_id, members=[member, nobody])
    answer = wire.ask(request, version)
    assert answer.error_code == 0
    if version >= 3:
        assert [one.error_code for one in answer.members] == [0, Code.UNKNOWN_MEMBER_ID]
    [found] = wire.ask(DescribeGroupsRequest(groups=[topic]), 5).groups
    assert (found.group_state, found.members) == ("Empty", [])


@pytest.mark.parametrize("version", range(6))
def test_describing_by_version(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic, instance="one")
    sync(wire, topic, joined, {joined.member_id: b"mine"})
    found, unknown = wire.ask(DescribeGroupsRequest(groups=[topic, f"{topic}-unknown"]), version).groups
    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Stable", "consumer")
    [member] = found.members
    assert (member.member_id, member.member_assignment, member.member_metadata) == (joined.member_id, b"mine", b"m")
    assert member.client_id == "raw"
    assert unknown.group_state == "Dead"
    assert unknown.members == []


def test_groups_are_listed_by_state(wire: Wire, topic: str) -> None:
    wire.create(topic)
    empty, stable = f"{topic}-empty", f"{topic}-stable"
    commit(wire, empty, {(topic, 0): 1})
    sync(wire, stable, join(wire, stable))

    def listed(*states: str, types: tuple[str, ...] = (), version: int = 5) -> set[str]:
        answer = wire.ask(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), version)
        assert answer.error_code == 0
        return {one.group_id for one in answer.groups} & {empty, stable}

    assert [listed(version=version) for version in range(6)] == [{empty, stable}] * 6
    assert (listed("Empty"), listed("stable"), listed("Dead")) == ({empty}, {stable}, set())
    assert (listed(types=("classic",)), listed(types=("consumer",))) == ({empty, stable}, set())


@pytest.mark.parametrize("version", range(3))
def test_only_groups_without_members_are_deleted(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    empty, stable = f"{topic}-empty", f"{topic}-stable"
    commit(wire, empty, {(topic, 0): 1})
    sync(wire, stable, join(wire, stable))
    answer = wire.ask(DeleteGroupsRequest(groups_names=[empty, stable, f"{topic}-unknown"]), version)
    codes = [one.error_code for one in answer.results]
    assert codes == [0, Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
    assert committed(wire, empty, topic) == (-1, "", 0)


def test_members_positions_and_generation_survive_a_restart(topic: str) -> None:
    with server() as one:
        with Wire(one.kafka) as wire:
            wire.create(topic)
            joined = join(wire, topic)
            sync(wire, topic, joined, {joined.member_id: b"kept"})
            member, generation = joined.member_id, joined.generation_id
            assert commit(wire, topic, {(topic, 0): 3}, member=member, generation=generation) == [0]
        one.restart()
        with Wire(one.kafka) as wire:
            beat = HeartbeatRequest(group_id=topic, generation_id=generation, member_id=member)
            assert wire.ask(beat, 4).error_code == 0
            assert sync(wire, topic, joined).assignment == b"kept"
            assert committed(wire, topic, topic)[0] == 3
            assert commit(wire, topic, {(topic, 0): 4}, member=member, generation=generation) == [0]
