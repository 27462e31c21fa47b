"""The whole group: restarts of the server, deletion, what tools see, and speed."""

import time

from tests.harness.groups import REBALANCE_MS, SESSION_MS, GroupContext

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.groups.events import TimerFired
from headrace.groups.model import GroupHeader, StoredGroup, TopicPartition

FLIGHTS = TopicPartition("flights", 0)


# restarts of the server
def test_a_stable_group_goes_on_through_a_restart_without_a_rebalance(ctx: GroupContext) -> None:
    leader, follower = ctx.stable(2)
    ctx.commit(leader, offset=5)
    before = ctx.group.describe()
    ctx.sleep(3_000)
    ctx.restart()

    assert ctx.group.describe() == before
    assert ctx.timers == {
        timers.session(leader): ctx.now_ms + SESSION_MS,
        timers.session(follower): ctx.now_ms + SESSION_MS,
    }
    assert ctx.heartbeat(leader).error is None
    assert ctx.commit(follower, offset=6).error is None
    assert ctx.sync(follower).result.assignment == follower.encode()
    assert ctx.group.subscribed_topics == frozenset({"flights"})


def test_members_that_do_not_return_after_a_restart_expire(ctx: GroupContext) -> None:
    here, _ = ctx.stable(2)
    ctx.restart()
    ctx.sleep(SESSION_MS - 1)
    ctx.heartbeat(here)
    ctx.sleep(1)

    assert [member.member_id for member in ctx.group.describe().members] == [here]
    assert ctx.join(here).result.generation == 2


def test_a_group_that_lost_a_member_before_the_restart_still_owes_a_rebalance(ctx: GroupContext) -> None:
    first, second, third = ctx.stable(3)
    ctx.leave(first)
    ctx.restart()

    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert ctx.remaining_ms(timers.rebalance()) == REBALANCE_MS
    assert ctx.heartbeat(second).error is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.commit(third).error is None
    join = ctx.join(second)
    ctx.join(third)
    assert join.result.generation == 2


def test_a_generation_without_assignment_is_joined_again_after_a_restart(ctx: GroupContext) -> None:
    leader, follower = ctx.stable(2)
    ctx.join(leader)
    ctx.join(follower)
    assert ctx.group.generation == 2
    ctx.restart()

    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert ctx.sync(leader, 2).error is GroupError.REBALANCE_IN_PROGRESS
    again = ctx.join(leader)
    ctx.join(follower)
    assert again.result.generation == 3, "a number is never used twice"


def test_every_generation_is_stored_also_when_none_gets_an_assignment(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    for generation in (2, 3, 4):
        ctx.join(member_id, protocols=(("range", b"%d" % generation),))
        assert ctx.stored.header is not None
        assert ctx.stored.header.generation == generation


def test_the_retention_of_a_group_whose_newcomers_were_lost_counts_from_the_restart(ctx: GroupContext) -> None:
    ctx.commit("", -1)
    ctx.join(version=3)
    ctx.sleep(100)
    ctx.restart()

    assert ctx.group.state is GroupState.EMPTY
    ctx.sleep(7 * 24 * 3_600_000 - 1)
    assert not ctx.storage.nothing
    ctx.sleep(1)
    assert ctx.storage.nothing


def test_a_join_in_progress_is_forgotten_by_a_restart_but_not_the_members_it_was_for(ctx: GroupContext) -> None:
    leader, follower = ctx.stable(2)
    held = ctx.join(leader)
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    ctx.restart()

    assert held.lost
    assert ctx.group.describe().state is GroupState.STABLE
    assert ctx.heartbeat(follower).error is None


def test_newcomers_of_an_unfinished_first_generation_are_unknown_after_a_restart(ctx: GroupContext) -> None:
    join = ctx.join(version=3)
    ctx.sleep(100)
    ctx.restart()

    assert ctx.group.state is GroupState.EMPTY
    assert ctx.sync(join.result.member_id).error is GroupError.UNKNOWN_MEMBER_ID
    ctx.form(ctx.join(version=3))
    assert ctx.group.generation == 2


def test_an_empty_group_comes_back_empty_with_its_positions(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id, offset=9)
    ctx.leave(member_id)
    ctx.restart()

    assert ctx.group.state is GroupState.EMPTY
    assert ctx.group.generation == 2
    assert set(ctx.timers) == {timers.retention()}
    position = ctx.whole.position(FLIGHTS)
    assert position is not None
    assert position.offset == 9


def test_a_group_of_positions_only_comes_back(ctx: GroupContext) -> None:
    ctx.commit("", -1, offset=3)
    ctx.restart()

    assert not ctx.storage.nothing
    assert set(ctx.group.positions()) == {FLIGHTS}
    assert ctx.group.describe().protocol_type == ""


def test_a_static_member_restarts_after_the_server_did(ctx: GroupContext) -> None:
    leader, old = ctx.form(ctx.join(instance="i"), ctx.join(instance="j"))
    ctx.restart()
    new = ctx.join(instance="j").result.member_id
    ctx.restart()

    assert ctx.group.state is GroupState.STABLE
    assert ctx.sync(new, instance="j").result.assignment == old.encode()
    assert ctx.heartbeat(old, instance="j").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.heartbeat(leader, instance="i").error is None


def test_members_removed_while_a_rebalance_was_open_do_not_come_back(ctx: GroupContext) -> None:
    leader, absent = ctx.stable(2)
    ctx.join(leader)
    ctx.sleep(SESSION_MS)
    ctx.restart()

    assert ctx.heartbeat(absent).error is GroupError.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in ctx.group.describe().members] == [leader]


def test_a_stored_leader_that_is_no_member_means_a_rebalance(ctx: GroupContext) -> None:
    ctx.stable(2)
    stored = ctx.stored
    header = GroupHeader(generation=1, protocol_type="consumer", protocol="range", leader="gone", empty_since_ms=None)
    ctx.storage = type(ctx.storage)(StoredGroup(name=stored.name, header=header, members=stored.members, positions={}))
    ctx.restart()

    assert ctx.group.state is GroupState.PREPARING_REBALANCE


def test_heartbeats_store_nothing(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.heartbeat(member_id)
    assert not ctx.persisted

    ctx.join(member_id)
    ctx.heartbeat(member_id)
    assert not ctx.persisted


# deletion
def test_a_group_with_members_cannot_be_deleted(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.delete_group().error is GroupError.NON_EMPTY_GROUP
    ctx.join(version=3)
    assert ctx.delete_group().error is GroupError.NON_EMPTY_GROUP


def test_an_empty_group_is_deleted_with_its_positions_and_timers(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.leave(member_id)
    pending = ctx.join().result.member_id
    assert timers.pending(pending) in ctx.timers

    assert ctx.delete_group().error is None
    assert ctx.group.state is GroupState.DEAD
    assert ctx.storage.nothing
    assert ctx.timers == {}
    assert dict(ctx.group.positions()) == {}


def test_a_group_that_does_not_exist_cannot_be_deleted(ctx: GroupContext) -> None:
    assert ctx.delete_group().error is GroupError.GROUP_ID_NOT_FOUND


def test_a_dead_group_sends_everyone_to_find_a_new_one(ctx: GroupContext) -> None:
    ctx.commit("", -1)
    ctx.delete_group()

    answers = [
        ctx.join().error,
        ctx.sync("m").error,
        ctx.heartbeat("m").error,
        ctx.leave("m").error,
        ctx.commit("", -1).error,
        ctx.delete_group().error,
        ctx.delete_offsets(FLIGHTS).error,
    ]
    assert set(answers) == {GroupError.COORDINATOR_NOT_AVAILABLE}
    ctx.drop_topic("flights")
    ctx.send(TimerFired(timers.retention()))
    assert ctx.group.state is GroupState.DEAD


def test_held_tokens_are_those_of_the_requests_that_wait(ctx: GroupContext) -> None:
    first, second = ctx.join(version=3), ctx.join(version=3)
    assert set(ctx.group.held_tokens()) == {first, second}
    ctx.sleep(200)
    assert ctx.group.held_tokens() == ()
    sync = ctx.sync(second.result.member_id)
    assert ctx.group.held_tokens() == (sync,)


# bulk
def test_a_rebalance_of_a_thousand_members_takes_well_under_five_seconds(ctx: GroupContext) -> None:
    ctx.checking = False  # it would be most of the time
    started = time.process_time()
    members = ctx.stable(1_000)
    joins = [ctx.join(member_id) for member_id in members]
    ctx.form(*joins)

    assert ctx.group.generation == 2
    assert ctx.group.state is GroupState.STABLE
    assert len(ctx.stored.members) == 1_000
    assert time.process_time() - started < 2
