"""A log that comes back with less: a reader that was ahead continues at the cut, and misses nothing new."""

import pytest
from tests.harness.instances import InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import GroupCursor, StartKind


def read(ctx: InstanceContext, cursor: GroupCursor) -> tuple[list[int], GroupCursor]:
    """The offsets of two gets: the first may only find out."""
    first = ctx.get(cursor)
    second = ctx.get(first.cursor)
    return [offset for _, offset in (*first.records, *second.records)], second.cursor


def at_seven(ctx: InstanceContext, *, commit_on_get: bool = True) -> GroupCursor:
    """A reader that has read seven records and committed five."""
    ctx.publish(0, 5)
    cursor = ctx.get(ctx.create("a", commit_on_get=commit_on_get)).cursor
    if not commit_on_get:
        cursor = ctx.commit_cursor(cursor)
    ctx.publish(0, 2)
    return ctx.get(cursor).cursor


@pytest.mark.parametrize(("log_end", "first"), [(6, 5), (4, 4), (0, 0)])
def test_a_reader_that_was_ahead_goes_on_where_the_log_was_cut(ctx: InstanceContext, log_end: int, first: int) -> None:
    """Or at its position, where that is before."""
    cursor = at_seven(ctx, commit_on_get=False)
    ctx.lose(0, log_end)
    ctx.publish(0, 8)
    assert read(ctx, cursor)[0] == [*range(first, log_end + 8)]


def test_committing_messages_in_flight_has_no_effect_and_is_no_error(ctx: InstanceContext) -> None:
    old = at_seven(ctx, commit_on_get=False)
    ctx.lose(0, 6)
    ctx.publish(0, 8)
    found, cursor = read(ctx, old)
    assert found == [*range(5, 14)]
    ctx.commit_cursor(old)
    assert ctx.committed() == 5
    ctx.commit_cursor(cursor)
    assert ctx.committed() == 14


def test_concurrent_commits_are_set_back(ctx: InstanceContext) -> None:
    cursor = at_seven(ctx, commit_on_get=False)
    ctx.lose(0, 4)
    ctx.publish(0, 8)
    cursor = ctx.commit_cursor(cursor)
    assert ctx.committed() == 7
    assert read(ctx, cursor)[0] == [*range(4, 12)]
    assert ctx.committed() == 4


def test_a_log_that_is_cut_twice_is_noticed_twice(ctx: InstanceContext) -> None:
    cursor = at_seven(ctx)
    for log_end in (4, 2):
        ctx.lose(0, log_end)
        ctx.publish(0, 8)
        found, cursor = read(ctx, cursor)
        assert found == [*range(log_end, log_end + 8)]


def test_of_two_gets_that_find_out_the_later_one_sets_nothing_back(ctx: InstanceContext) -> None:
    cursor = at_seven(ctx)
    first, second = ctx.begin_get(cursor), ctx.begin_get(cursor)
    ctx.lose(0, 4)
    ctx.publish(0, 8)
    cursor = ctx.get(ctx.answer_get(first).cursor).cursor
    cursor = ctx.get(cursor).cursor
    assert ctx.committed() == 12
    ctx.answer_get(second)
    assert ctx.committed() == 12


def test_a_group_reset_concurrently_stays_there(ctx: InstanceContext) -> None:
    plan = ctx.begin_get(at_seven(ctx))
    ctx.lose(0, 4)
    ctx.publish(0, 8)
    ctx.update(StartKind.LATEST)
    got = ctx.answer_get(plan)
    ctx.publish(0, 1)
    assert read(ctx, got.cursor)[0] == [12]


def test_where_a_group_began_is_of_the_log_as_it_was(ctx: InstanceContext) -> None:
    ctx.publish(0, 7)
    cursor = ctx.create("a", StartKind.LATEST)
    ctx.lose(0, 4)
    ctx.publish(0, 8)
    assert read(ctx, cursor)[0] == [*range(4, 12)]


def test_a_server_that_was_started_again_knows_of_which_log_its_positions_are(ctx: InstanceContext) -> None:
    cursor = at_seven(ctx)
    cursor = ctx.get(cursor).cursor
    ctx.restart()
    ctx.lose(0, 4)
    ctx.publish(0, 8)
    assert read(ctx, cursor)[0] == [*range(4, 12)]


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_commits_after_a_restart_stay_if_no_record_was_lost(ctx: InstanceContext, commit_on_get: bool) -> None:
    """The log was recovered between the last commit and the later read: it is still the same log."""
    ctx.publish(0, 5)
    cursor = ctx.get(ctx.create("a", commit_on_get=commit_on_get)).cursor
    cursor = ctx.get(ctx.commit_cursor(cursor)).cursor
    ctx.reopen(0)
    ctx.publish(0, 2)
    cursor = ctx.get(cursor).cursor
    ctx.restart()
    ctx.reopen(0)
    cursor = ctx.commit_cursor(cursor)
    assert ctx.committed() == 7
    assert read(ctx, cursor)[0] == []
    assert ctx.committed() == 7


def test_messages_in_flight_at_a_restart_that_were_lost_are_missed(ctx: InstanceContext) -> None:
    cursor = at_seven(ctx, commit_on_get=False)
    ctx.reopen(0)
    ctx.publish(0, 3)
    cursor = ctx.get(cursor).cursor
    ctx.restart()
    ctx.lose(0, 8)
    ctx.publish(0, 8)
    cursor = ctx.commit_cursor(cursor)
    assert ctx.committed() == 10
    assert read(ctx, cursor)[0] == [*range(8, 16)]


def test_other_partitions_keep_what_they_have_in_hand(four: InstanceContext) -> None:
    cursor = four.get(four.create("a", commit_on_get=False)).cursor
    four.lose(1, 4)
    cursor = four.get(cursor).cursor
    four.commit_cursor(cursor)
    assert [four.committed(partition) for partition in range(4)] == [10, None, 10, 10]


def test_an_instance_that_lost_a_partition_gets_the_usual_error(four: InstanceContext) -> None:
    cursor = four.get(four.create("a")).cursor
    four.lose(1, 4)
    b = four.create("b")
    four.get(b)
    four.sleep(60_000)
    four.get(b)
    four.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: four.get(cursor))
