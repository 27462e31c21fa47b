"""The join phase: initial delay, awaited and removed members, the leader, the protocol (E.1)."""

from tests.harness.groups import REBALANCE_MS, SESSION_MS, GroupContext

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupSettings


# the initial delay
def test_members_that_start_together_share_generation_1_and_the_first_to_join_leads(ctx: GroupContext) -> None:
    joins = []
    for _ in range(5):
        joins.append(ctx.join(version=3))
        ctx.sleep(30)
    ctx.sleep(200)

    assert {join.result.generation for join in joins} == {1}
    assert {join.result.leader for join in joins} == {joins[0].result.member_id}


def test_members_that_first_receive_their_ids_share_generation_1_too(ctx: GroupContext) -> None:
    first = ctx.join(ctx.join().result.member_id)
    ctx.sleep(99)
    late = ctx.join().result.member_id
    ctx.sleep(50)
    second = ctx.join(late)
    ctx.sleep(200)

    assert first.result.generation == second.result.generation == 1


def test_without_newcomers_the_initial_delay_ends_when_it_is_over(ctx: GroupContext) -> None:
    join = ctx.join(version=3)

    assert ctx.remaining_ms(timers.initial_delay()) == 100
    ctx.sleep(99)
    assert join.held
    ctx.sleep(1)
    assert join.result.generation == 1
    assert timers.initial_delay() not in ctx.timers


def test_each_newcomer_extends_the_initial_delay_up_to_the_rebalance_timeout() -> None:
    ctx = GroupContext(GroupSettings(initial_rebalance_delay_ms=3_000))
    first = ctx.join(version=3, rebalance_ms=7_000)
    for _ in range(6):
        ctx.sleep(1_000)
        ctx.join(version=3, rebalance_ms=7_000)
    assert first.held

    ctx.sleep(1_000)
    assert first.result.generation == 1
    assert len(first.result.members) == 7


def test_there_is_no_initial_delay_but_for_an_empty_group(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    newcomer = ctx.join(version=3)

    assert newcomer.held
    ctx.join(member_id)
    assert newcomer.result.generation == 2


def test_a_delay_of_zero_still_ends_by_the_timer() -> None:
    ctx = GroupContext(GroupSettings(initial_rebalance_delay_ms=0))
    join = ctx.join(version=3)
    ctx.sleep(0)

    assert join.result.generation == 1


def test_a_group_whose_members_all_leave_during_the_initial_delay_is_empty_again(ctx: GroupContext) -> None:
    member_id = ctx.join().result.member_id
    join = ctx.join(member_id)
    ctx.leave(member_id)

    assert join.error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.group.state is GroupState.EMPTY
    assert timers.initial_delay() not in ctx.timers
    assert timers.session(member_id) not in ctx.timers


# who is waited for
def test_the_join_phase_ends_when_all_members_have_rejoined(ctx: GroupContext) -> None:
    first, second, third = ctx.stable(3)
    joins = [ctx.join(first), ctx.join(second)]
    assert all(join.held for join in joins)
    assert ctx.remaining_ms(timers.rebalance()) == REBALANCE_MS

    joins.append(ctx.join(third))
    assert [join.result.generation for join in joins] == [2, 2, 2]
    assert timers.rebalance() not in ctx.timers
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE


def test_a_pending_member_is_waited_for(ctx: GroupContext) -> None:
    (first,) = ctx.stable(1)
    pending = ctx.join().result.member_id
    rejoin = ctx.join(first)
    assert rejoin.held

    ctx.join(pending)
    assert len(rejoin.result.members) == 2


def test_the_join_phase_ends_when_the_last_pending_member_expires(ctx: GroupContext) -> None:
    (first,) = ctx.stable(1)
    ctx.join()
    rejoin = ctx.join(first)
    ctx.sleep(SESSION_MS)

    assert rejoin.result.generation == 2
    assert len(rejoin.result.members) == 1


def test_the_join_phase_ends_when_the_last_pending_member_leaves(ctx: GroupContext) -> None:
    (first,) = ctx.stable(1)
    pending = ctx.join().result.member_id
    rejoin = ctx.join(first)
    assert ctx.leave(pending).result.members[0].error is None

    assert rejoin.result.generation == 2
    assert timers.pending(pending) not in ctx.timers


def test_the_join_phase_ends_when_the_last_absentee_leaves(ctx: GroupContext) -> None:
    first, second = ctx.stable(2)
    rejoin = ctx.join(first)
    ctx.leave(second)

    assert rejoin.result.generation == 2


def test_the_join_phase_ends_when_the_last_absentee_expires(ctx: GroupContext) -> None:
    first, _ = ctx.stable(2)
    rejoin = ctx.join(first)
    ctx.sleep(SESSION_MS)

    assert rejoin.result.generation == 2


# the end of the time to rejoin
def test_dynamic_absentees_are_out_at_the_largest_rebalance_timeout(ctx: GroupContext) -> None:
    leader, absent = ctx.form(
        ctx.join(version=3, rebalance_ms=20_000),
        ctx.join(version=3, rebalance_ms=40_000),
    )
    rejoin = ctx.join(leader, rebalance_ms=20_000)
    assert ctx.remaining_ms(timers.rebalance()) == 40_000
    for _ in range(4):
        ctx.sleep(9_999)
        ctx.heartbeat(absent)
    assert rejoin.held

    ctx.sleep(4)
    assert rejoin.result.generation == 2
    assert [member.member_id for member in rejoin.result.members] == [leader]
    assert timers.session(absent) not in ctx.timers
    assert ctx.heartbeat(absent).error is GroupError.UNKNOWN_MEMBER_ID


def test_static_absentees_are_kept(ctx: GroupContext) -> None:
    long = 100_000
    leader, absent = ctx.form(ctx.join(instance="i"), ctx.join(instance="j", session_ms=long))
    rejoin = ctx.join(leader, instance="i")
    ctx.sleep(REBALANCE_MS)

    assert [member.member_id for member in rejoin.result.members] == [leader, absent]
    assert ctx.remaining_ms(timers.session(absent)) == long - REBALANCE_MS


def test_a_static_absentee_owes_no_sync_and_falls_only_to_its_session(ctx: GroupContext) -> None:
    leader, absent = ctx.form(ctx.join(instance="i"), ctx.join(instance="j", session_ms=200_000))
    ctx.join(leader, instance="i")
    ctx.sleep(REBALANCE_MS)
    ctx.sync(leader, assignments={absent: b"kept"})
    assert timers.sync() not in ctx.timers

    for _ in range(10):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(leader)
    assert ctx.group.state is GroupState.STABLE
    again = ctx.join(absent, instance="j").result
    assert again.generation == 2
    assert ctx.sync(absent, instance="j").result.assignment == b"kept"


def test_without_rejoined_members_the_phase_is_extended(ctx: GroupContext) -> None:
    leader, other = ctx.form(
        ctx.join(instance="i", session_ms=200_000),
        ctx.join(version=3),
    )
    ctx.leave(other)
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    ctx.sleep(REBALANCE_MS)

    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert ctx.group.generation == 1
    assert ctx.remaining_ms(timers.rebalance()) == REBALANCE_MS
    assert ctx.join(leader, instance="i").result.generation == 2


def test_the_last_static_member_expires_into_an_empty_group(ctx: GroupContext) -> None:
    ctx.form(ctx.join(instance="i"))
    ctx.sleep(SESSION_MS)

    assert ctx.group.state is GroupState.EMPTY
    assert ctx.group.generation == 2
    assert set(ctx.timers) == {timers.retention()}


def test_a_generation_is_stored_before_anybody_hears_of_it(ctx: GroupContext) -> None:
    join = ctx.join(version=3)
    ctx.sleep(100)

    assert join.result.generation == 1
    assert ctx.stored.header is not None
    assert (ctx.stored.header.generation, ctx.stored.header.unsettled) == (1, True)


# a rebalance in the middle of the next phase
def test_a_new_join_in_completing_rebalance_fails_the_syncs_that_are_held(ctx: GroupContext) -> None:
    first, second = ctx.join(version=3), ctx.join(version=3)
    ctx.sleep(200)
    held = ctx.sync(second.result.member_id)
    assert timers.session(second.result.member_id) not in ctx.timers
    newcomer = ctx.join(version=3)

    assert held.error is GroupError.REBALANCE_IN_PROGRESS
    assert held.result.assignment == b""
    assert newcomer.held
    assert timers.sync() not in ctx.timers
    assert ctx.remaining_ms(timers.session(second.result.member_id)) == SESSION_MS
    assert ctx.sync(first.result.member_id).error is GroupError.REBALANCE_IN_PROGRESS
