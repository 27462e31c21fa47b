"""Positions in a group: fencing, deletion, retention (E.2, E.4)."""

import pytest
from tests.harness.groups import SESSION_MS, GroupContext, subscription

from headrace.groups import timers
from headrace.groups.classic.states import GroupState
from headrace.groups.errors import GroupError
from headrace.groups.model import DropGroup, GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.machines.effects import Persist

FLIGHTS = TopicPartition("flights", 0)
WEATHER = TopicPartition("weather", 0)
DAY_MS = 24 * 3_600_000


# who may commit


def test_a_member_commits_in_its_generation(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    commit = ctx.commit(member_id, offset=42, metadata="note")

    assert commit.error is None
    assert commit.result.partitions == {FLIGHTS: None}
    assert isinstance(ctx.effects[0], Persist)
    expected = OffsetAndMetadata(offset=42, leader_epoch=-1, metadata="note", committed_ms=ctx.now_ms)
    assert ctx.whole.position(FLIGHTS) == expected
    assert ctx.stored.positions == {FLIGHTS: expected}


def test_metadata_and_leader_epoch_come_back_as_they_were_sent(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit_all(member_id, {FLIGHTS: OffsetAndMetadata(offset=1, leader_epoch=7, metadata="größe")})
    ctx.restart()
    position = ctx.whole.position(FLIGHTS)

    assert position is not None
    assert (position.leader_epoch, position.metadata) == (7, "größe")


def test_nothing_committed_is_no_position(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.whole.position(FLIGHTS) is None
    assert dict(ctx.group.positions()) == {}


@pytest.mark.parametrize("generation", [0, 2])
def test_another_generation_cannot_commit(ctx: GroupContext, generation: int) -> None:
    (member_id,) = ctx.stable(1)
    commit = ctx.commit(member_id, generation)

    assert commit.error is GroupError.ILLEGAL_GENERATION
    assert commit.result.partitions == {FLIGHTS: GroupError.ILLEGAL_GENERATION}
    assert ctx.whole.position(FLIGHTS) is None


def test_an_unknown_member_cannot_commit(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.commit("stranger").error is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_cannot_commit_without_its_generation(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)

    assert ctx.commit(member_id, -1).error is GroupError.ILLEGAL_GENERATION


def test_while_members_rejoin_they_may_still_commit(ctx: GroupContext) -> None:
    first, second = ctx.stable(2)
    ctx.join(first)
    assert ctx.group.state is GroupState.PREPARING_REBALANCE

    assert ctx.commit(second).error is None
    assert ctx.commit(first).error is None


def test_commits_are_rejected_during_a_rebalance(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.join(member_id)
    assert ctx.group.state is GroupState.COMPLETING_REBALANCE

    assert ctx.commit(member_id).error is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.commit(member_id, 1).error is GroupError.ILLEGAL_GENERATION


@pytest.mark.parametrize("preparing", [False, True])
def test_a_commit_keeps_its_member_alive(ctx: GroupContext, preparing: bool) -> None:
    first, second = ctx.stable(2)
    if preparing:
        ctx.join(second, protocols=(("range", b"changed"),))
    ctx.sleep(SESSION_MS - 1)
    ctx.commit(first)

    assert ctx.remaining_ms(timers.session(first)) == SESSION_MS


# from outside the group


def test_a_tool_may_commit_where_there_is_no_group(ctx: GroupContext) -> None:
    assert ctx.commit("", -1).error is None
    assert not ctx.storage.nothing
    assert ctx.group.state is GroupState.EMPTY
    assert ctx.group.describe().protocol_type == ""


def test_a_tool_may_commit_in_an_empty_group(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)

    assert ctx.commit("", -1).error is None


@pytest.mark.parametrize("state", [GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE])
def test_a_tool_cannot_commit_in_a_group_with_members(ctx: GroupContext, state: GroupState) -> None:
    if state is GroupState.STABLE:
        ctx.stable(1)
    else:
        ctx.join(version=3)
        ctx.sleep(99 if state is GroupState.PREPARING_REBALANCE else 100)
    assert ctx.group.state is state

    assert ctx.commit("", -1).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_generation_of_a_group_that_does_not_exist_is_refused(ctx: GroupContext) -> None:
    assert ctx.commit("m1", 3).error is GroupError.GROUP_ID_NOT_FOUND
    assert ctx.storage.nothing


def test_a_generation_of_an_empty_group_is_refused(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)

    assert ctx.commit(member_id, 1).error is GroupError.UNKNOWN_MEMBER_ID


def test_the_empty_group_name_may_be_committed_to() -> None:
    ctx = GroupContext(name="")

    assert ctx.commit("", -1).error is None


# deletion of positions


def test_positions_in_a_subscribed_topic_cannot_be_deleted(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.commit(member_id, topic="weather")
    deleted = ctx.delete_offsets(FLIGHTS, WEATHER)

    assert deleted.result.partitions == {FLIGHTS: GroupError.GROUP_SUBSCRIBED_TO_TOPIC, WEATHER: None}
    assert set(ctx.stored.positions) == {FLIGHTS}


def test_when_subscriptions_cannot_be_read_every_topic_counts_as_subscribed(ctx: GroupContext) -> None:
    ctx.form(ctx.join(version=3, protocols=(("range", b"?"),)))

    assert ctx.group.subscribed_topics is None
    assert ctx.delete_offsets(WEATHER).result.partitions == {WEATHER: GroupError.GROUP_SUBSCRIBED_TO_TOPIC}


def test_an_empty_group_subscribes_to_nothing(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.leave(member_id)

    assert ctx.delete_offsets(FLIGHTS).result.partitions == {FLIGHTS: None}
    assert ctx.stored.positions == {}


def test_a_group_of_another_protocol_type_must_be_empty(ctx: GroupContext) -> None:
    ctx.form(ctx.join(version=3, protocol_type="connect"))
    deleted = ctx.delete_offsets(FLIGHTS)

    assert deleted.error is GroupError.NON_EMPTY_GROUP
    assert deleted.result.partitions == {FLIGHTS: GroupError.NON_EMPTY_GROUP}


def test_positions_of_a_group_that_does_not_exist_cannot_be_deleted(ctx: GroupContext) -> None:
    assert ctx.delete_offsets(FLIGHTS).error is GroupError.GROUP_ID_NOT_FOUND


def test_deletion_of_what_is_not_there_is_no_error_and_changes_nothing(ctx: GroupContext) -> None:
    ctx.stable(1)

    assert ctx.delete_offsets(WEATHER).result.partitions == {WEATHER: None}
    assert not ctx.persisted


def test_a_deleted_topic_takes_its_positions_along(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.commit(member_id, partition=1)
    ctx.commit(member_id, topic="weather")
    ctx.drop_topic("flights")

    assert set(ctx.group.positions()) == set(ctx.stored.positions) == {WEATHER}
    ctx.drop_topic("flights")
    assert not ctx.persisted


# retention


def emptied(ctx: GroupContext) -> None:
    """A group that had one member, has one position, and is now empty."""
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.sleep(5_000)
    ctx.leave(member_id)


def test_positions_expire_when_the_group_has_been_empty_for_the_retention(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.sleep(7 * DAY_MS - 1)
    assert ctx.whole.position(FLIGHTS) is not None
    ctx.sleep(1)

    assert ctx.group.state is GroupState.DEAD
    assert ctx.storage.nothing
    assert ctx.timers == {}


def test_a_group_with_members_keeps_the_positions_it_reads(ctx: GroupContext) -> None:
    (member_id,) = ctx.form(ctx.join(version=3, session_ms=1_800_000))
    ctx.commit(member_id)
    assert timers.retention() not in ctx.timers
    for _ in range(400):
        ctx.sleep(1_799_999)
        ctx.heartbeat(member_id)

    assert ctx.whole.position(FLIGHTS) is not None


def test_a_stable_group_loses_positions_in_topics_it_no_longer_reads() -> None:
    ctx = GroupContext(GroupSettings(offsets_retention_ms=60_000))
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id)
    ctx.commit(member_id, topic="weather")
    assert ctx.remaining_ms(timers.retention()) == 60_000
    for _ in range(10):
        ctx.sleep(SESSION_MS - 1)
        ctx.heartbeat(member_id)

    assert set(ctx.stored.positions) == {FLIGHTS}
    assert timers.retention() not in ctx.timers


def test_a_rebalance_stops_the_retention_and_its_end_starts_it_again() -> None:
    ctx = GroupContext(GroupSettings(offsets_retention_ms=60_000))
    (member_id,) = ctx.stable(1)
    ctx.commit(member_id, topic="weather")
    ctx.sleep(1_000)
    ctx.join(member_id)
    assert timers.retention() not in ctx.timers
    ctx.sync(member_id)

    assert ctx.remaining_ms(timers.retention()) == 59_000


def test_a_member_that_comes_in_time_saves_the_positions(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.sleep(7 * DAY_MS - 1)
    join = ctx.join(version=3)
    assert timers.retention() not in ctx.timers
    ctx.form(join)

    assert ctx.whole.position(FLIGHTS) is not None


def test_a_commit_into_an_empty_group_counts_for_itself(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.sleep(6 * DAY_MS)
    ctx.commit("", -1, topic="weather")
    ctx.sleep(DAY_MS)

    assert set(ctx.stored.positions) == {WEATHER}
    assert ctx.group.state is GroupState.EMPTY
    ctx.sleep(6 * DAY_MS)
    assert ctx.group.describe().state is GroupState.DEAD


def test_a_simple_consumers_positions_expire_one_by_one(ctx: GroupContext) -> None:
    ctx.commit("", -1)
    ctx.sleep(DAY_MS)
    ctx.commit("", -1, topic="weather")
    ctx.sleep(6 * DAY_MS)
    assert set(ctx.stored.positions) == {WEATHER}

    ctx.sleep(DAY_MS)
    assert ctx.storage.nothing


def test_the_retention_goes_on_counting_through_a_restart(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.sleep(4 * DAY_MS)
    ctx.restart()
    ctx.sleep(3 * DAY_MS - 1)
    assert not ctx.storage.nothing

    ctx.sleep(1)
    assert ctx.storage.nothing


def test_the_retention_follows_a_clock_that_is_set(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.stepped_ms = -1_000 * DAY_MS
    ctx.sleep(8 * DAY_MS)
    assert not ctx.storage.nothing
    ctx.stepped_ms = 0
    ctx.sleep(DAY_MS)
    assert ctx.storage.nothing


def test_an_empty_group_without_positions_goes_after_a_check_interval(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)
    assert ctx.remaining_ms(timers.retention()) == 600_000
    ctx.sleep(600_000)

    assert ctx.group.state is GroupState.DEAD
    assert ctx.storage.nothing


def test_an_empty_group_is_kept_while_a_member_joins(ctx: GroupContext) -> None:
    (member_id,) = ctx.stable(1)
    ctx.leave(member_id)
    ctx.sleep(595_000)
    pending = ctx.join().result.member_id
    ctx.sleep(6_000)

    assert ctx.group.state is GroupState.EMPTY
    assert ctx.join(pending).held


def test_the_end_of_a_group_is_stored_as_such(ctx: GroupContext) -> None:
    emptied(ctx)
    ctx.sleep(7 * DAY_MS)

    (persist,) = [effect for effect in ctx.effects if isinstance(effect, Persist)]
    assert persist.changes[-1] == DropGroup()


def test_newcomers_topics_are_unknown_until_a_generation_has_begun(ctx: GroupContext) -> None:
    ctx.commit("", -1)
    join = ctx.join(version=3, protocols=(("range", subscription("weather")),))
    assert ctx.group.subscribed_topics is None
    ctx.form(join)

    assert ctx.group.subscribed_topics == {"weather"}
    assert timers.retention() in ctx.timers
