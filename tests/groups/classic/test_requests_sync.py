"""SyncGroup: held, answered, refused, and never sent (E.1)."""

import pytest
from tests.harness.groups import REBALANCE_MS, SESSION_MS, GroupContext

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.machines.effects import Persist, Reply


def completing(ctx: GroupContext, size: int) -> list[str]:
    """A group that waits for its leader's sync; the ids of its members, the leader's first."""
    joins = [ctx.join(version=3) for _ in range(size)]
    ctx.sleep(200)
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE
    return [join.result.member_id for join in joins]


def test_syncs_are_held_until_the_leaders(ctx: GroupContext) -> None:
    leader, a, b = completing(ctx, 3)
    held = [ctx.sync(a), ctx.sync(b)]
    assert [sync.held for sync in held] == [True, True]

    last = ctx.sync(leader, assignments={leader: b"0", a: b"1", b: b"2"})
    assert [sync.result.assignment for sync in (last, *held)] == [b"0", b"1", b"2"]
    assert (last.result.protocol_type, last.result.protocol) == ("consumer", "range")
    assert ctx.group.state is GroupState.STABLE


def test_assignments_are_stored_before_any_sync_is_answered(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    ctx.sync(a)
    ctx.sync(leader, assignments={a: b"1"})

    assert isinstance(ctx.effects[0], Persist)
    assert sum(isinstance(effect, Reply) for effect in ctx.effects) == 2
    assert {member.member_id: member.assignment for member in ctx.stored.members} == {leader: b"", a: b"1"}
    assert ctx.stored.header is not None
    assert (ctx.stored.header.generation, ctx.stored.header.leader, ctx.stored.header.unsettled) == (1, leader, False)


def test_a_sync_in_stable_gets_the_stored_assignment(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    ctx.sync(leader, assignments={a: b"1"})
    sync = ctx.sync(a)

    assert sync.result.assignment == b"1"
    assert not ctx.persisted
    assert ctx.sync(a).result.assignment == b"1"


def test_members_the_leader_left_out_get_empty_bytes(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    sync = ctx.sync(a)
    ctx.sync(leader, assignments={"stranger": b"x"})

    assert sync.error is None
    assert sync.result.assignment == b""


def test_an_assignment_of_an_earlier_generation_is_not_kept(ctx: GroupContext) -> None:
    leader, a = ctx.stable(2)
    ctx.join(leader)
    ctx.join(a)
    ctx.sync(leader, assignments={leader: b"all"})

    assert ctx.sync(a).result.assignment == b""


def test_assignments_that_do_not_come_from_the_leader_are_ignored(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    assert ctx.sync(a, assignments={a: b"mine"}).held
    ctx.sync(leader, assignments={a: b"1"})

    assert ctx.sync(a).result.assignment == b"1"


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_another_generation_is_refused(ctx: GroupContext, generation: int) -> None:
    leader, *_ = completing(ctx, 1)

    assert ctx.sync(leader, generation).error is GroupError.ILLEGAL_GENERATION


def test_in_preparing_rebalance_a_sync_is_refused(ctx: GroupContext) -> None:
    leader, _ = ctx.stable(2)
    ctx.join(version=3)

    assert ctx.sync(leader).error is GroupError.REBALANCE_IN_PROGRESS


def test_in_an_empty_group_the_member_is_unknown(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)

    assert ctx.sync(member_id).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.sync(member_id, instance="i").error is GroupError.UNKNOWN_MEMBER_ID


def test_a_sync_of_an_unknown_member_is_refused(ctx: GroupContext) -> None:
    completing(ctx, 1)

    assert ctx.sync("stranger").error is GroupError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "refused"),
    [("consumer", "range", False), (None, None, False), ("connect", None, True), (None, "sticky", True)],
)
def test_protocol_type_and_name_are_checked_where_they_are_given(
    ctx: GroupContext, protocol_type: str | None, protocol: str | None, refused: bool
) -> None:
    leader, *_ = completing(ctx, 1)
    sync = ctx.sync(leader, protocol_type=protocol_type, protocol=protocol)

    assert sync.error is (GroupError.INCONSISTENT_GROUP_PROTOCOL if refused else None)


def test_a_second_sync_takes_the_place_of_the_first(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    first = ctx.sync(a)
    second = ctx.sync(a)
    assert first.error is GroupError.REBALANCE_IN_PROGRESS

    ctx.sync(leader, assignments={a: b"1"})
    assert second.result.assignment == b"1"


# sessions


def test_sessions_restart_with_the_assignment(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    ctx.sync(a)
    for _ in range(3):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(leader)
    ctx.sync(leader)

    assert ctx.remaining_ms(timers.session(a)) == SESSION_MS
    assert ctx.remaining_ms(timers.session(leader)) == SESSION_MS


def test_a_leader_that_dies_before_its_sync_is_replaced(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    held = ctx.sync(a)
    ctx.sleep(SESSION_MS)

    assert held.error is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.join(a).result.leader == a
    assert ctx.heartbeat(leader).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_sync_keeps_its_member_alive_also_when_it_is_answered_at_once(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.sleep(SESSION_MS - 1)
    ctx.sync(member_id)

    assert ctx.remaining_ms(timers.session(member_id)) == SESSION_MS


# the time to sync


def test_members_that_do_not_sync_in_time_are_out_and_the_rest_start_over(ctx: GroupContext) -> None:
    leader, a, b = completing(ctx, 3)
    assert ctx.remaining_ms(timers.sync()) == REBALANCE_MS
    held = ctx.sync(a)
    for _ in range(6):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(leader)
        ctx.heartbeat(b)
    ctx.sleep(6)

    assert held.error is GroupError.REBALANCE_IN_PROGRESS
    assert [member.member_id for member in ctx.group.describe().members] == [a]
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert timers.session(leader) not in ctx.timers
    assert timers.session(b) not in ctx.timers


def test_the_time_to_sync_also_counts_when_the_group_is_stable_already(ctx: GroupContext) -> None:
    leader, late = completing(ctx, 2)
    ctx.sync(leader)
    assert ctx.group.state is GroupState.STABLE
    assert timers.sync() in ctx.timers
    for _ in range(7):
        ctx.heartbeat(leader)
        ctx.heartbeat(late)
        ctx.sleep(SESSION_MS - 1)

    assert ctx.group.describe().state is GroupState.PREPARING_REBALANCE
    assert [member.member_id for member in ctx.group.describe().members] == [leader]


def test_the_sync_timer_is_gone_when_everyone_has_synced(ctx: GroupContext) -> None:
    leader, a = completing(ctx, 2)
    ctx.sync(leader)
    assert timers.sync() in ctx.timers
    ctx.sync(a)

    assert timers.sync() not in ctx.timers


def test_the_sync_timer_is_gone_when_a_rebalance_starts(ctx: GroupContext) -> None:
    leader, _ = completing(ctx, 2)
    ctx.leave(leader)

    assert timers.sync() not in ctx.timers
