"""JoinGroup: ids, refusals, rejoins (E.1), and static members (E.3)."""

import pytest
from tests.harness.groups import SESSION_MS, GroupContext, subscription

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupSettings

OTHER = (("range", subscription("weather")),)


# ids of newcomers


def test_a_newcomer_receives_its_id_and_is_pending_for_its_session_timeout(ctx: GroupContext) -> None:
    first = ctx.join(version=4, session_ms=7_000)

    assert first.error is GroupError.MEMBER_ID_REQUIRED
    assert first.result.member_id == "m1"
    assert ctx.timers == {timers.pending("m1"): ctx.now_ms + 7_000}
    assert ctx.group.state is GroupState.EMPTY
    assert not ctx.persisted


def test_a_pending_member_that_comes_back_is_taken_in_under_its_id(ctx: GroupContext) -> None:
    member_id = ctx.join().result.member_id
    second = ctx.join(member_id)

    assert second.held
    assert timers.pending(member_id) not in ctx.timers
    assert ctx.form(second) == [member_id]


def test_a_pending_member_that_does_not_come_back_is_forgotten(ctx: GroupContext) -> None:
    member_id = ctx.join().result.member_id
    ctx.sleep(SESSION_MS)

    assert ctx.timers == {}
    assert ctx.storage.nothing
    assert ctx.join(member_id).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_pending_id_with_an_instance_id_is_refused(ctx: GroupContext) -> None:
    member_id = ctx.join().result.member_id

    assert ctx.join(member_id, instance="i").error is GroupError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_versions_join_at_once(ctx: GroupContext, version: int) -> None:
    assert ctx.join(version=version).held


def test_static_members_join_at_once(ctx: GroupContext) -> None:
    join = ctx.join(instance="i")

    assert join.held
    assert ctx.form(join) == ["i-1"]


def test_a_member_id_in_a_group_that_does_not_exist_is_unknown(ctx: GroupContext) -> None:
    assert ctx.join("stranger").error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.storage.nothing
    assert ctx.timers == {}


def test_an_unknown_member_id_in_a_stable_group_is_refused(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.join("stranger").error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.group.state is GroupState.STABLE


# refusals


def test_the_empty_group_name_is_refused_where_members_are_concerned() -> None:
    ctx = GroupContext(name="")

    assert ctx.join().error is GroupError.INVALID_GROUP_ID
    assert ctx.sync("m").error is GroupError.INVALID_GROUP_ID
    assert ctx.heartbeat("m").error is GroupError.INVALID_GROUP_ID
    assert ctx.leave("m").error is GroupError.INVALID_GROUP_ID


@pytest.mark.parametrize(("session_ms", "refused"), [(5_999, True), (6_000, False), (30_000, False), (30_001, True)])
def test_the_session_timeout_has_bounds(session_ms: int, refused: bool) -> None:
    ctx = GroupContext(GroupSettings(min_session_timeout_ms=6_000, max_session_timeout_ms=30_000))
    join = ctx.join(version=3, session_ms=session_ms)

    assert join.held is not refused
    if refused:
        assert join.error is GroupError.INVALID_SESSION_TIMEOUT


def test_the_smallest_session_timeout_is_a_setting() -> None:
    ctx = GroupContext(GroupSettings(min_session_timeout_ms=10))

    assert ctx.join(version=3, session_ms=10).held


@pytest.mark.parametrize("member_id_known", [False, True])
def test_a_member_without_protocols_is_refused(ctx: GroupContext, member_id_known: bool) -> None:
    member_id = ctx.join().result.member_id if member_id_known else ""

    assert ctx.join(member_id, protocols=()).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_protocol_type_is_refused(ctx: GroupContext) -> None:
    assert ctx.join(protocol_type="").error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_another_protocol_type_than_the_groups_is_refused(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.join(protocol_type="connect").error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_shares_no_protocol_with_all_others_is_refused(ctx: GroupContext) -> None:
    ctx.form(
        ctx.join(version=3, protocols=(("range", b""), ("sticky", b""))),
        ctx.join(version=3, protocols=(("range", b""),)),
    )

    assert ctx.join(protocols=(("sticky", b""),)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert ctx.join(protocols=(("sticky", b""), ("range", b""))).error is GroupError.MEMBER_ID_REQUIRED


def test_an_empty_group_takes_any_protocol_type(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)
    ctx.form(ctx.join(version=3, protocol_type="connect", protocols=(("default", b""),)))

    assert ctx.group.describe().protocol_type == "connect"


# the size of a group


def test_a_full_stable_group_rejects_newcomers(small: GroupContext) -> None:
    first, _ = small.stable(2)

    assert small.join(version=3).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert small.join().error is GroupError.GROUP_MAX_SIZE_REACHED
    assert small.group.state is GroupState.STABLE
    assert small.join(first).held, "members of the group may rejoin"


def test_while_preparing_the_joins_that_wait_are_counted(small: GroupContext) -> None:
    first, second = small.stable(2)
    assert small.join(first).held
    assert small.join(version=3).held

    assert small.join(second).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert small.join(first).held, "one that waits may send its join again"


def test_a_pending_member_that_finds_the_group_full_loses_its_id(small: GroupContext) -> None:
    (first,) = small.stable(1)
    pending = small.join().result.member_id
    small.form(small.join(version=3), small.join(first))

    assert small.join(pending).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert timers.pending(pending) not in small.timers


def test_a_full_group_stops_waiting_for_the_pending_member_that_it_refuses(small: GroupContext) -> None:
    first, second = small.join(version=3), small.join(version=3)
    small.sleep(200)
    leader = first.result.member_id
    small.leave(second.result.member_id)
    pending = small.join().result.member_id
    newcomer = small.join(version=3)
    rejoin = small.join(leader)
    assert rejoin.held

    assert small.join(pending).error is GroupError.GROUP_MAX_SIZE_REACHED
    assert len(rejoin.result.members) == 2
    assert newcomer.result.generation == 2


def test_a_static_member_restarts_in_a_full_group(small: GroupContext) -> None:
    small.form(small.join(instance="i"), small.join(instance="j"))

    assert small.join(instance="i").error is None


@pytest.mark.parametrize("letter", ["i", "\N{SNOWMAN}"])
def test_names_of_instances_are_part_of_what_members_say_of_themselves(letter: str) -> None:
    """Each is stored, is the prefix of its member's id, and is returned by descriptions of the group."""
    ctx = GroupContext(GroupSettings(max_metadata_bytes=10_000))
    size = 1_000 // len(letter.encode())
    joined = [ctx.join(instance=f"{number}{letter * size}") for number in range(4)]
    assert all(each.held for each in joined)
    assert ctx.join(instance=f"4{letter * size}").error is GroupError.GROUP_MAX_SIZE_REACHED
    # Who comes again takes its own place.
    assert ctx.join(instance=f"3{letter * size}").held


# rejoining


def test_a_second_join_takes_the_place_of_the_first(ctx: GroupContext) -> None:
    member_id = ctx.join().result.member_id
    first = ctx.join(member_id)
    second = ctx.join(member_id)

    assert first.error is GroupError.REBALANCE_IN_PROGRESS
    assert second.held
    assert ctx.form(second) == [member_id]


def test_a_join_sent_again_in_completing_rebalance_gets_the_present_generation(ctx: GroupContext) -> None:
    leader, follower = ctx.join(version=3), ctx.join(version=3)
    ctx.sleep(200)
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE

    again = ctx.join(leader.result.member_id).result
    assert again == leader.result
    assert len(again.members) == 2
    assert ctx.join(follower.result.member_id).result == follower.result
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE
    assert ctx.group.generation == 1


def test_changed_metadata_in_completing_rebalance_starts_over(ctx: GroupContext) -> None:
    ctx.join(version=3)
    follower = ctx.join(version=3)
    ctx.sleep(200)

    assert ctx.join(follower.result.member_id, protocols=OTHER).held
    assert ctx.group.state is GroupState.PREPARING_REBALANCE


def test_the_leaders_join_in_stable_forces_a_rebalance(ctx: GroupContext) -> None:
    leader, _ = ctx.stable(2)

    assert ctx.join(leader).held
    assert ctx.group.state is GroupState.PREPARING_REBALANCE


def test_a_followers_join_in_stable_without_a_change_gets_the_present_generation(ctx: GroupContext) -> None:
    leader, follower = ctx.stable(2)
    again = ctx.join(follower).result

    assert (again.error, again.generation, again.leader, again.members) == (None, 1, leader, ())
    assert ctx.group.state is GroupState.STABLE


def test_a_followers_join_in_stable_with_changed_metadata_forces_a_rebalance(ctx: GroupContext) -> None:
    _, follower = ctx.stable(2)

    assert ctx.join(follower, protocols=OTHER).held
    assert ctx.group.state is GroupState.PREPARING_REBALANCE


def test_a_rejoin_replaces_all_that_the_member_said_before(ctx: GroupContext) -> None:
    both = (("range", b""), ("sticky", b""))
    leader, other = ctx.form(ctx.join(version=3, protocols=both), ctx.join(version=3, protocols=both))
    ctx.form(
        ctx.join(leader, protocols=both),
        ctx.join(other, protocols=(("sticky", b""),), client_id="moved", session_ms=7_000),
    )

    assert ctx.group.describe().protocol == "sticky"
    assert ctx.group.describe().members[1].client_id == "moved"
    assert ctx.remaining_ms(timers.session(other)) == 7_000
    assert ctx.join(protocols=(("range", b""),)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    ctx.leave(other)
    assert ctx.join(protocols=(("range", b""),)).error is GroupError.MEMBER_ID_REQUIRED


# sessions while a join is held


def test_a_held_join_keeps_its_member_alive(ctx: GroupContext) -> None:
    first, second = ctx.stable(2)
    held = ctx.join(first)

    assert timers.session(first) not in ctx.timers
    for _ in range(3):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(second)
    assert held.held

    ctx.join(second)
    assert held.result.generation == 2
    assert ctx.remaining_ms(timers.session(first)) == SESSION_MS


def test_a_join_keeps_the_member_alive_also_when_it_is_answered_at_once(ctx: GroupContext) -> None:
    _, follower = ctx.stable(2)
    ctx.sleep(SESSION_MS - 1)
    ctx.join(follower)

    assert ctx.remaining_ms(timers.session(follower)) == SESSION_MS


def test_a_newcomers_join_is_not_held_for_ever(ctx: GroupContext) -> None:
    (member_id,) = ctx.form(ctx.join(version=3, rebalance_ms=1_000_000))
    newcomer = ctx.join(version=3)
    assert ctx.remaining_ms(timers.session("m3")) == 300_000

    for _ in range(31):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(member_id)
    assert newcomer.error is GroupError.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in ctx.group.describe().members] == [member_id]


def test_a_newcomer_that_sends_its_join_again_gets_the_whole_time_again(ctx: GroupContext) -> None:
    ctx.stable(1)
    pending = ctx.join().result.member_id
    ctx.join(pending)
    ctx.sleep(1_000)
    ctx.join(pending)

    assert ctx.remaining_ms(timers.session(pending)) == 300_000


# static members


def static_pair(ctx: GroupContext) -> tuple[str, str]:
    leader, follower = ctx.form(ctx.join(instance="i"), ctx.join(instance="j"))
    return leader, follower


def test_a_restarted_static_member_takes_its_place_without_a_rebalance(ctx: GroupContext) -> None:
    leader, old = static_pair(ctx)
    result = ctx.join(instance="j").result

    assert ctx.persisted
    assert (result.error, result.generation, result.leader, result.skip_assignment) == (None, 1, leader, False)
    assert result.member_id not in (old, "")
    assert result.members == ()
    assert ctx.group.state is GroupState.STABLE
    assert ctx.sync(result.member_id, instance="j").result.assignment == old.encode()
    assert timers.session(old) not in ctx.timers
    assert ctx.remaining_ms(timers.session(result.member_id)) == SESSION_MS
    assert {m.member_id: m.assignment for m in ctx.stored.members} == {
        leader: leader.encode(),
        result.member_id: old.encode(),
    }


def test_a_restarted_static_leader_skips_the_assignment(ctx: GroupContext) -> None:
    static_pair(ctx)
    result = ctx.join(instance="i").result

    assert result.skip_assignment
    assert result.leader == result.member_id
    assert [member.instance_id for member in result.members] == ["j", "i"]
    assert ctx.stored.header is not None
    assert ctx.stored.header.leader == result.member_id
    assert not ctx.stored.header.unsettled


def test_a_restarted_static_leader_of_an_old_version_receives_its_old_id(ctx: GroupContext) -> None:
    leader, _ = static_pair(ctx)
    result = ctx.join(instance="i", version=8).result

    assert (result.leader, result.skip_assignment, result.members) == (leader, False, ())
    assert result.member_id != leader
    assert ctx.group.describe().leader == result.member_id, "the next generation's leader it is all the same"


def test_a_restart_that_changes_the_chosen_protocol_forces_a_rebalance(ctx: GroupContext) -> None:
    both = (("range", b""), ("sticky", b""))
    ctx.form(ctx.join(instance="i", protocols=both), ctx.join(instance="j", protocols=both))

    assert ctx.join(instance="j", protocols=(("sticky", b""),)).held
    assert ctx.group.state is GroupState.PREPARING_REBALANCE


def test_a_restart_in_completing_rebalance_starts_over(ctx: GroupContext) -> None:
    first, second = ctx.join(instance="i"), ctx.join(instance="j")
    ctx.sleep(200)
    held = ctx.sync(second.result.member_id)

    assert ctx.join(instance="i").held
    assert held.error is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert ctx.join(first.result.member_id, instance="i").error is GroupError.FENCED_INSTANCE_ID


def test_a_restart_while_preparing_fences_the_join_that_is_held(ctx: GroupContext) -> None:
    leader, _ = static_pair(ctx)
    held = ctx.join(leader, instance="i")
    again = ctx.join(instance="i")

    assert held.error is GroupError.FENCED_INSTANCE_ID
    assert again.held
    assert ctx.form(again, ctx.join(instance="j"))[0] == again.result.member_id


def test_a_restart_fences_the_sync_that_is_held(ctx: GroupContext) -> None:
    _, second = ctx.join(instance="i"), ctx.join(instance="j")
    ctx.sleep(200)
    held = ctx.sync(second.result.member_id, instance="j")
    ctx.join(instance="j")

    assert held.error is GroupError.FENCED_INSTANCE_ID


def test_a_restarted_static_member_is_no_newcomer(ctx: GroupContext) -> None:
    static_pair(ctx)
    new = ctx.join(instance="i").result.member_id
    assert ctx.join(new, instance="i").held

    assert timers.session(new) not in ctx.timers


def test_a_restarted_static_member_that_goes_leaves_nothing_in_storage(ctx: GroupContext) -> None:
    ctx.form(ctx.join(instance="i"))
    new = ctx.join(instance="i").result.member_id
    assert [member.member_id for member in ctx.stored.members] == [new]
    ctx.leave(new)

    assert ctx.stored.members == ()


def test_the_old_id_of_a_static_member_is_fenced_everywhere(ctx: GroupContext) -> None:
    _, old = static_pair(ctx)
    new = ctx.join(instance="j").result.member_id

    assert ctx.join(old, instance="j").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.sync(old, instance="j").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.heartbeat(old, instance="j").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.commit(old, instance="j").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.heartbeat(new, instance="j").error is None


def test_an_unknown_instance_with_a_member_id_is_unknown_everywhere(ctx: GroupContext) -> None:
    leader, _ = static_pair(ctx)

    assert ctx.join(leader, instance="k").error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.sync(leader, instance="k").error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.heartbeat(leader, instance="k").error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.commit(leader, instance="k").error is GroupError.UNKNOWN_MEMBER_ID


def test_a_restarted_member_that_had_not_synced_still_owes_its_sync(ctx: GroupContext) -> None:
    first, second = ctx.join(instance="i"), ctx.join(instance="j")
    ctx.sleep(200)
    leader = first.result.member_id
    ctx.sync(leader, assignments={leader: b"all"})
    assert ctx.group.state is GroupState.STABLE
    new = ctx.join(instance="j").result.member_id
    assert new != second.result.member_id

    for _ in range(7):
        ctx.heartbeat(leader)
        ctx.heartbeat(new)
        ctx.sleep(SESSION_MS - 1)
    assert [member.member_id for member in ctx.group.describe().members] == [leader]
