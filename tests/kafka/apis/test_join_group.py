"""JoinGroup on the wire (reference: KIP-394, KIP-345). The rules of groups: tests/groups."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, committed, join, join_request, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    HeartbeatRequest,
)
from headrace.testing import server


@pytest.mark.parametrize("version", range(10))
def test_joining_by_version(wire: Wire, topic: str, version: int) -> None:
    first = wire.ask(join_request(topic), version)
    assert first.error_code == (Code.MEMBER_ID_REQUIRED if version >= 4 else 0)
    assert first.member_id
    joined = first if version < 4 else wire.ask(join_request(topic, first.member_id), version)
    assert (joined.error_code, joined.leader, joined.protocol_name) == (0, joined.member_id, "range")
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, b"m")]
    assert joined.generation_id == 1


def test_only_the_leader_gets_the_members(wire: Wire, other: Wire, topic: str) -> None:
    wire.send(join_request(topic), 3)
    other.send(join_request(topic), 3)
    answers = [wire.receive(), other.receive()]
    assert {one.generation_id for one in answers} == {1}, "members that start together share a generation"
    assert sorted(len(one.members) for one in answers) == [0, 2]
    leader = max(answers, key=lambda one: len(one.members))
    assert {one.leader for one in answers} == {leader.member_id}


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
