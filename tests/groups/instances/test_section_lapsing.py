"""Reservations that lapse: they belong to their instance until another one takes the partition."""

from collections.abc import Callable

import pytest
from tests.harness.instances import TIMEOUT_MS, InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import GroupCursor, StartKind
from headrace.groups.model import TopicPartition

LAPSE_MS = TIMEOUT_MS + 1
ALL = {partition: list(range(10)) for partition in range(4)}


def nothing(ctx: InstanceContext) -> None:
    """Only time passes."""


def restarted(ctx: InstanceContext) -> None:
    """The server restarts, or another broker becomes the group's coordinator."""
    ctx.restart()


@pytest.fixture(params=[nothing, restarted])
def event(request: pytest.FixtureRequest) -> Callable[[InstanceContext], None]:
    """What happens while a reservation has lapsed."""
    found: Callable[[InstanceContext], None] = request.param
    return found


def lapsed(ctx: InstanceContext, event: Callable[[InstanceContext], None], *, commit_on_get: bool) -> GroupCursor:
    """The cursor of an instance that has everything in flight, and whose reservation has lapsed."""
    cursor = ctx.get(ctx.create("a", commit_on_get=commit_on_get)).cursor
    ctx.sleep(LAPSE_MS)
    event(ctx)
    assert ctx.shares() == {}
    return cursor


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_a_slow_instance_alone_in_its_group_is_never_refused(ctx: InstanceContext, *, commit_on_get: bool) -> None:
    """A published consumer: `timeoutInMs` 1000 and a second between two gets."""
    ctx.publish(0, 20)
    cursor, seen = ctx.create("a", timeout_ms=1_000, commit_on_get=commit_on_get), []
    for _ in range(5):
        got = ctx.get(cursor, 4)
        seen += [offset for _, offset in got.records]
        ctx.sleep(1_001)
        cursor = got.cursor if commit_on_get else ctx.commit_cursor(got.cursor)
        ctx.sleep(1_001)

    assert seen == list(range(20))
    assert ctx.get(cursor).records == ()
    assert ctx.committed() == 20


def test_a_get_after_a_lapse_commits_and_goes_on(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    cursor = lapsed(four, event, commit_on_get=True)
    four.publish(2, 3)

    assert four.get(cursor).by_partition() == {2: [10, 11, 12]}
    assert [four.at(partition) for partition in range(4)] == [10] * 4
    assert four.shares() == {"a": [0, 1, 2, 3]}


def test_a_commit_after_a_lapse_commits_and_reserves_again(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    cursor = lapsed(four, event, commit_on_get=False)

    cursor = four.commit_cursor(cursor)
    assert [four.committed(partition) for partition in range(4)] == [10] * 4
    assert four.shares() == {"a": [0, 1, 2, 3]}
    assert four.get(cursor).records == ()


def test_a_get_without_commit_on_get_goes_on_after_what_its_chain_was_given(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    cursor = lapsed(four, event, commit_on_get=False)
    four.publish(0, 2)

    got = four.get(cursor)
    assert got.by_partition() == {0: [10, 11]}
    assert four.at(0) == 0
    four.commit_cursor(got.cursor)
    assert [four.at(partition) for partition in range(4)] == [12, 10, 10, 10]


def test_heartbeats_of_a_chain_of_their_own_bring_back_what_was_in_flight(four: InstanceContext) -> None:
    created = four.create("a")
    cursor = four.get(created).cursor
    four.sleep(LAPSE_MS)
    four.beat(created)
    four.get(four.create("b"))
    # Another instance is due two of them. As ever, they are not taken while the first one is at work on them.
    for _ in range(3):
        four.sleep(TIMEOUT_MS // 2)
        four.beat(created)
    four.get(cursor)

    assert [four.committed(partition) for partition in range(4)] == [10] * 4


def test_a_new_cursor_after_a_lapse_reads_from_the_committed_position(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    old = lapsed(four, event, commit_on_get=False)
    new = four.create("a", commit_on_get=False)
    assert four.get(new).by_partition() == ALL

    # An earlier life of the instance has nothing left.
    four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.commit_cursor(old))
    four.beat(four.create("b"))
    four.sleep(1)
    four.beat(new)
    assert four.counts() == [0, 4]


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_a_commit_for_a_partition_of_another_instance_is_refused(
    four: InstanceContext, event: Callable[[InstanceContext], None], *, commit_on_get: bool
) -> None:
    cursor = lapsed(four, event, commit_on_get=commit_on_get)
    assert four.get(four.create("b")).by_partition() == ALL
    event(four)

    error = four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.commit_cursor(cursor))
    assert (error.partition, str(error)) == (0, "Trying to commit unreserved partition 0")
    if commit_on_get:
        four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.get(cursor))
    # It is not taken in again by that.
    assert four.shares() == {"b": [0, 1, 2, 3]}
    assert [four.committed(partition) for partition in range(4)] == [None] * 4


def test_one_partition_that_another_instance_holds_refuses_all_of_the_request(four: InstanceContext) -> None:
    a = four.get(four.create("a")).cursor
    four.sleep(LAPSE_MS)
    b = four.create("b")
    b = four.get(b).cursor
    # It comes in again by a heartbeat, and gets half of them back once the other one has committed.
    four.beat(a)
    b = four.get(b).cursor
    four.get(b)
    held = four.shares()
    assert len(held["a"]) == len(held["b"]) == 2

    error = four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.get(a))
    assert error.partition == held["b"][0]


def test_the_shares_of_an_instance_that_is_in_go_to_it_at_once(four: InstanceContext) -> None:
    a, b = four.create("a"), four.create("b", timeout_ms=10 * TIMEOUT_MS)
    for _ in range(3):
        a, b = four.get(a, 1).cursor, four.get(b, 1).cursor
    assert four.counts() == [2, 2]
    four.sleep(LAPSE_MS)

    assert four.shares() == {"b": [0, 1, 2, 3]}
    assert a.offsets
    four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.get(a))


def test_what_was_taken_and_given_back_can_be_committed_and_skips_nothing(
    ctx: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    ctx.publish(0, 10)
    a = ctx.get(ctx.create("a", commit_on_get=False), 6).cursor
    ctx.sleep(LAPSE_MS)
    b = ctx.get(ctx.create("b", commit_on_get=False), 4)
    assert b.by_partition() == {0: [0, 1, 2, 3]}
    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(a))
    ctx.sleep(LAPSE_MS)
    event(ctx)

    after = ctx.commit_cursor(a)
    assert ctx.committed() == 6
    assert ctx.get(after).by_partition() == {0: [6, 7, 8, 9]}
    # The other one is refused now, and no position goes back.
    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(b.cursor))
    assert ctx.committed() == 6


def test_what_was_taken_committed_further_and_given_back_does_not_go_back(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    a = ctx.get(ctx.create("a"), 3).cursor
    ctx.sleep(LAPSE_MS)
    ctx.get(ctx.get(ctx.create("b"), 8).cursor, 1)
    ctx.sleep(LAPSE_MS)

    assert ctx.get(a).by_partition() == {0: [8, 9]}
    assert ctx.committed() == 8


def test_a_get_that_began_before_a_lapse_and_ends_after_it_counts(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    plan = ctx.begin_get(ctx.create("a"))
    ctx.sleep(LAPSE_MS)
    got = ctx.answer_get(plan)
    assert got.by_partition() == {0: [0, 1, 2, 3, 4]}

    ctx.get(got.cursor)
    assert ctx.committed() == 5


def test_update_group_overtakes_a_lapsed_reservation(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    cursor = lapsed(four, event, commit_on_get=True)
    four.update(StartKind.TRIM_HORIZON)
    event(four)

    assert four.commit_cursor(cursor).offsets == ()
    assert four.shares() == {}
    assert four.get(cursor).by_partition() == ALL


def test_a_reset_by_kafka_s_tools_overtakes_a_lapsed_reservation_in_its_partition(
    four: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    cursor = lapsed(four, event, commit_on_get=True)
    assert four.commit("", -1, partition=1, offset=4).error is None
    event(four)

    assert four.get(cursor).by_partition() == {1: [4, 5, 6, 7, 8, 9]}
    assert [four.at(partition) for partition in range(4)] == [10, 4, 10, 10]


def test_a_position_that_tools_delete_overtakes_a_lapsed_reservation(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(LAPSE_MS)
    ctx.checking = False  # A partition without a position is what this is about.
    ctx.delete_offsets(TopicPartition("flights", 0))

    assert ctx.get(cursor).by_partition() == {0: [0, 1, 2, 3, 4]}


def test_kafka_s_consumers_hold_what_has_lapsed_as_another_instance_does(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(LAPSE_MS)
    (member,) = ctx.stable(1)

    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(cursor))
    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.get(cursor))
    ctx.leave(member)
    assert ctx.get(cursor).records == ()
    assert ctx.committed() == 5


def test_consumers_that_commit_all_the_time_cost_the_section_one_write(ctx: InstanceContext) -> None:
    ctx.publish(0, 50)
    ctx.get(ctx.create("a"))
    ctx.sleep(LAPSE_MS)
    (member,) = ctx.stable(1)
    ctx.commit(member, offset=1)
    generation = ctx.whole.balanced["flights"].generation
    for offset in range(2, 20):
        ctx.commit(member, offset=offset)

    assert ctx.whole.balanced["flights"].generation == generation


def test_records_that_replaced_lost_ones_are_not_skipped_by_a_lapsed_instance(
    ctx: InstanceContext, event: Callable[[InstanceContext], None]
) -> None:
    """Another instance had read the new ones, and committed nothing."""
    ctx.publish(0, 6)
    a = ctx.get(ctx.create("a", commit_on_get=False)).cursor
    ctx.sleep(LAPSE_MS)
    ctx.lose(0, 3)
    ctx.publish(0, 5)
    ctx.get(ctx.create("b", commit_on_get=False))
    ctx.sleep(LAPSE_MS)
    event(ctx)

    ctx.commit_cursor(a)
    assert ctx.at() == 0
    assert ctx.get(a).by_partition() == {0: list(range(8))}


def test_records_that_replaced_lost_ones_are_not_skipped_by_an_earlier_life(ctx: InstanceContext) -> None:
    ctx.publish(0, 6)
    old = ctx.get(ctx.create("a", commit_on_get=False)).cursor
    new = ctx.create("a", commit_on_get=False)
    ctx.lose(0, 3)
    ctx.publish(0, 5)
    ctx.get(new)
    ctx.sleep(LAPSE_MS)

    ctx.commit_cursor(old)
    assert ctx.at() == 0


def test_a_cut_that_is_found_after_a_lapse_sets_the_position_back(ctx: InstanceContext) -> None:
    ctx.publish(0, 6)
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(LAPSE_MS)
    ctx.lose(0, 3)
    ctx.publish(0, 5)

    found = ctx.get(cursor)
    found = ctx.get(found.cursor) if not found.records else found
    assert found.by_partition() == {0: [3, 4, 5, 6, 7]}
