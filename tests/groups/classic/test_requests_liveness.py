"""Heartbeats, leaving, expiry (E.2)."""

import pytest
from tests.harness.groups import SESSION_MS, GroupContext

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.groups.events import Leaving, TimerFired

# heartbeats


def test_a_heartbeat_keeps_a_member_alive(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    for _ in range(5):
        ctx.sleep(SESSION_MS - 1)
        assert ctx.heartbeat(member_id).error is None
        assert ctx.remaining_ms(timers.session(member_id)) == SESSION_MS
        assert not ctx.persisted


def test_a_silent_member_expires(ctx: GroupContext) -> None:
    silent, other = ctx.stable(2)
    ctx.sleep(SESSION_MS - 1)
    ctx.heartbeat(other)
    ctx.sleep(1)

    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert timers.session(silent) not in ctx.timers
    assert [member.member_id for member in ctx.stored.members] == [other]
    assert ctx.heartbeat(silent).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_heartbeat_during_preparing_rebalance_returns_an_error_and_keeps_alive(ctx: GroupContext) -> None:
    first, second = ctx.stable(2)
    ctx.join(first)
    ctx.sleep(SESSION_MS - 1)

    assert ctx.heartbeat(second).error is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.remaining_ms(timers.session(second)) == SESSION_MS


def test_in_completing_rebalance_a_heartbeat_is_fine(ctx: GroupContext) -> None:
    join = ctx.join(version=3)
    ctx.sleep(100)

    assert ctx.group.state is GroupState.COMPLETING_REBALANCE
    assert ctx.heartbeat(join.result.member_id).error is None


def test_in_an_empty_group_and_in_none_the_member_is_unknown(ctx: GroupContext) -> None:
    assert ctx.heartbeat("m1").error is GroupError.UNKNOWN_MEMBER_ID
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)

    assert ctx.heartbeat(member_id).error is GroupError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_another_generation_is_refused(ctx: GroupContext, generation: int) -> None:
    (member_id,) = ctx.stable(1)
    ctx.sleep(1)

    assert ctx.heartbeat(member_id, generation).error is GroupError.ILLEGAL_GENERATION
    assert ctx.remaining_ms(timers.session(member_id)) == SESSION_MS - 1


def test_a_heartbeat_of_a_member_whose_join_is_held_starts_no_session(ctx: GroupContext) -> None:
    first, _ = ctx.stable(2)
    ctx.join(first)

    assert ctx.heartbeat(first).error is GroupError.REBALANCE_IN_PROGRESS
    assert timers.session(first) not in ctx.timers


def test_a_firing_that_was_overtaken_by_a_heartbeat_means_nothing(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.sleep(SESSION_MS - 1)
    ctx.heartbeat(member_id)
    ctx.send(TimerFired(timers.session(member_id)))

    assert ctx.group.state is GroupState.STABLE
    assert ctx.remaining_ms(timers.session(member_id)) == SESSION_MS


# leaving


def test_a_member_that_leaves_starts_a_rebalance_at_once(ctx: GroupContext) -> None:
    leaving, other = ctx.stable(2)
    left = ctx.leave(leaving)

    assert left.error is None
    assert [(each.member_id, each.error) for each in left.result.members] == [(leaving, None)]
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert timers.session(leaving) not in ctx.timers
    assert [member.member_id for member in ctx.stored.members] == [other]
    assert ctx.heartbeat(other).error is GroupError.REBALANCE_IN_PROGRESS


def test_a_leave_may_name_many_members_each_with_its_own_outcome(ctx: GroupContext) -> None:
    ctx.form(ctx.join(instance="i"), ctx.join(instance="j"), ctx.join(instance="k"), ctx.join(version=3))
    left = ctx.leave(
        Leaving(member_id="m4"),
        Leaving(member_id="", instance_id="i"),
        Leaving(member_id="stranger"),
        Leaving(member_id="", instance_id="stranger"),
        Leaving(member_id="i-1", instance_id="j"),
        Leaving(member_id=""),
        Leaving(member_id="k-3", instance_id="k"),
    )

    assert [(each.member_id, each.instance_id, each.error) for each in left.result.members] == [
        ("m4", None, None),
        ("", "i", None),
        ("stranger", None, GroupError.UNKNOWN_MEMBER_ID),
        ("", "stranger", GroupError.UNKNOWN_MEMBER_ID),
        ("i-1", "j", GroupError.FENCED_INSTANCE_ID),
        ("", None, GroupError.UNKNOWN_MEMBER_ID),
        ("k-3", "k", None),
    ]
    assert [member.member_id for member in ctx.group.describe().members] == ["j-2"]


def test_a_leave_of_unknown_members_only_changes_nothing(ctx: GroupContext) -> None:
    ctx.stable(1)
    ctx.leave("stranger")

    assert ctx.group.state is GroupState.STABLE
    assert not ctx.persisted


def test_a_pending_member_that_leaves_is_dropped(ctx: GroupContext) -> None:
    pending = ctx.join().result.member_id

    assert ctx.leave(pending).result.members[0].error is None
    assert ctx.timers == {}
    assert ctx.join(pending).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_is_answered_what_it_still_waits_for(ctx: GroupContext) -> None:
    first, second = ctx.stable(2)
    join = ctx.join(first)
    ctx.leave(first)
    assert join.error is GroupError.UNKNOWN_MEMBER_ID

    ctx.join(second)
    ctx.sync(second)
    assert ctx.group.state is GroupState.STABLE


def test_a_member_that_leaves_while_its_sync_is_held_is_answered(ctx: GroupContext) -> None:
    joins = [ctx.join(version=3), ctx.join(version=3)]
    ctx.sleep(200)
    follower = joins[1].result.member_id
    sync = ctx.sync(follower)
    ctx.leave(follower)

    assert sync.error is GroupError.UNKNOWN_MEMBER_ID


def test_the_last_member_leaves_an_empty_group_behind(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id, offset=7)
    ctx.sleep(5)
    ctx.leave(member_id)

    assert ctx.group.state is GroupState.EMPTY
    assert ctx.group.generation == 2
    assert not ctx.storage.nothing
    assert [position.offset for position in ctx.group.positions().values()] == [7]
    header = ctx.stored.header
    assert header is not None
    assert (header.generation, header.leader, header.protocol, header.empty_since_ms) == (2, None, None, ctx.now_ms)
    assert ctx.stored.members == ()
    assert set(ctx.timers) == {timers.retention()}


def test_a_static_member_that_closes_without_leaving_stays_until_its_session_ends(ctx: GroupContext) -> None:
    ctx.form(ctx.join(instance="i"))
    ctx.sleep(SESSION_MS - 1)
    assert ctx.group.state is GroupState.STABLE
    ctx.sleep(1)

    assert ctx.group.describe().state is GroupState.EMPTY
