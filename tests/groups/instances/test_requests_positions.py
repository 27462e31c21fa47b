"""Where groups start, what they commit, and what a get reads."""

import pytest
from tests.harness.instances import TIMEOUT_MS, InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import StartKind


def test_trim_horizon_begins_with_the_oldest_record(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    ctx.trim(0, 2)

    assert ctx.get(ctx.create("a")).by_partition() == {0: [2, 3, 4]}


def test_latest_begins_with_what_comes_after_the_cursor(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    cursor = ctx.create("a", StartKind.LATEST)
    ctx.publish(0, 2)

    assert ctx.get(cursor).by_partition() == {0: [5, 6]}


def test_at_time_begins_with_the_first_record_that_is_not_earlier(ctx: InstanceContext) -> None:
    for time in (10, 20, 30):
        ctx.publish(0, time_ms=time)

    assert ctx.get(ctx.create("a", StartKind.AT_TIME, 15)).by_partition() == {0: [1, 2]}


def test_at_a_time_in_the_future_nothing_earlier_is_handed_out(ctx: InstanceContext) -> None:
    ctx.publish(0, time_ms=10)
    cursor = ctx.create("a", StartKind.AT_TIME, 50)
    ctx.publish(0, time_ms=40)
    got = ctx.get(cursor)
    assert got.records == ()
    ctx.restart()
    ctx.publish(0, time_ms=49)
    ctx.publish(0, time_ms=50)
    ctx.publish(0, time_ms=60)

    got = ctx.get(got.cursor)
    assert got.by_partition() == {0: [3, 4]}
    # From there on the order of the log rules, whatever the records' own times.
    ctx.publish(0, time_ms=45)
    got = ctx.get(got.cursor)
    assert got.by_partition() == {0: [5]}
    ctx.restart()
    assert ctx.get(got.cursor).records == ()
    assert ctx.committed() == 6


def test_the_start_of_every_partition_is_fixed_at_creation_over_a_restart() -> None:
    ctx = InstanceContext(3)
    for partition in range(3):
        ctx.publish(partition, 7)
    ctx.create("a", StartKind.LATEST)
    assert [ctx.at(partition) for partition in range(3)] == [7, 7, 7]
    ctx.restart()
    for partition in range(3):
        ctx.publish(partition, 2)
    ctx.restart()

    got = ctx.get(ctx.create("b", StartKind.LATEST))
    assert got.by_partition() == {partition: [7, 8] for partition in range(3)}


def test_on_an_existing_group_the_type_is_ignored_and_committed_positions_rule(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    ctx.get(ctx.get(ctx.create("a"), 3).cursor, 1)
    ctx.sleep(TIMEOUT_MS + 1)

    assert ctx.get(ctx.create("b", StartKind.LATEST)).by_partition() == {0: [3, 4]}


def test_two_who_make_the_group_at_once_agree_on_one_start(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    ctx.create("a", StartKind.LATEST, known=False)
    b = ctx.create("b", StartKind.TRIM_HORIZON, known=False)

    assert ctx.get(b).records == ()


def test_a_trim_horizon_moves_up_with_the_log_start_until_something_is_committed(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    cursor = ctx.create("a")
    ctx.trim(0, 4)
    got = ctx.get(cursor, 2)
    assert got.by_partition() == {0: [4, 5]}
    got = ctx.get(got.cursor, 1)
    assert ctx.committed() == 6
    ctx.trim(0, 8)

    ctx.refused(InstanceProblem.BEHIND_LOG_START, lambda: ctx.get(got.cursor))
    cured = ctx.create("a")
    ctx.update(StartKind.TRIM_HORIZON)
    assert ctx.get(cured).by_partition() == {0: [8, 9]}


def test_a_latest_start_that_retention_has_overtaken_is_an_error(ctx: InstanceContext) -> None:
    """Records to read are gone: the group gets an error, as for committed offsets."""
    cursor = ctx.create("a", StartKind.LATEST)
    ctx.publish(0, 10)
    ctx.trim(0, 4)

    ctx.refused(InstanceProblem.BEHIND_LOG_START, lambda: ctx.get(cursor))


def test_the_same_request_sent_twice_gives_the_same_and_commits_nothing_wrong(ctx: InstanceContext) -> None:
    ctx.publish(0, 30)
    first = ctx.get(ctx.create("a"), 10)
    second = ctx.get(first.cursor, 10)
    again = ctx.get(first.cursor, 10)

    assert again == second
    assert ctx.committed() == 10
    third = ctx.get(again.cursor, 10)
    assert third.by_partition() == {0: list(range(20, 30))}
    # The older one comes once more, late: nothing goes back.
    assert ctx.get(first.cursor, 10).records == third.records
    assert ctx.committed() == 20


def test_a_repeated_get_of_several_partitions_begins_with_the_same_one(four: InstanceContext) -> None:
    cursor = four.get(four.create("a"), 5).cursor
    second = four.get(cursor, 5)
    assert four.get(cursor, 5) == second
    assert four.get(cursor, 5) == second


def test_several_partitions_are_served_in_turn(four: InstanceContext) -> None:
    for partition in range(4):
        four.publish(partition, 990)
    got = four.get(four.create("a"), 50)
    served = [got.partitions]
    for _ in range(7):
        got = four.get(got.cursor, 50)
        served.append(got.partitions)

    assert served == [[0], [1], [2], [3], [0], [1], [2], [3]]


def test_several_partitions_are_served_in_turn_by_those_who_commit_themselves(four: InstanceContext) -> None:
    for partition in range(4):
        four.publish(partition, 990)
    cursor = four.create("a", commit_on_get=False)
    served = []
    for _ in range(8):
        got = four.get(cursor, 50)
        served.append(got.partitions)
        cursor = four.commit_cursor(got.cursor)

    assert served == [[0], [1], [2], [3], [0], [1], [2], [3]]


def test_an_empty_answer_means_that_nothing_is_unread(four: InstanceContext) -> None:
    got = four.get(four.create("a"), 7)
    seen = set(got.records)
    while got.records:
        got = four.get(got.cursor, 7)
        assert not seen & set(got.records)
        seen |= set(got.records)

    assert seen == {(partition, offset) for partition in range(4) for offset in range(10)}


def test_a_full_cursor_lets_the_other_partitions_wait(four: InstanceContext) -> None:
    cursor = four.create("a", commit_on_get=False)
    got = four.get(cursor, most_offsets=2)
    assert got.partitions == [0, 1]
    assert four.get(got.cursor, most_offsets=2).records == ()

    cursor = four.commit_cursor(got.cursor)
    assert four.get(cursor, most_offsets=2).partitions == [2, 3]


def test_with_commit_on_get_a_full_cursor_costs_a_request_and_nothing_else(four: InstanceContext) -> None:
    got = four.get(four.create("a"), most_offsets=2)
    assert got.partitions == [0, 1]
    got = four.get(got.cursor, most_offsets=2)
    assert got.partitions == [2, 3]
    assert four.get(got.cursor, most_offsets=2).records == ()
    assert [four.committed(partition) for partition in range(4)] == [10] * 4


def test_without_commit_on_get_nothing_is_committed_unasked(ctx: InstanceContext) -> None:
    ctx.publish(0, 30)
    got = ctx.get(ctx.create("a", commit_on_get=False), 10)
    for _ in range(2):
        got = ctx.get(got.cursor, 10)
        ctx.beat(got.cursor)
    assert ctx.committed() is None
    assert got.records[-1] == (0, 29)

    ctx.commit_cursor(got.cursor)
    assert ctx.committed() == 30


def test_a_commit_covers_what_its_cursor_carries_and_no_more(ctx: InstanceContext) -> None:
    ctx.publish(0, 30)
    first = ctx.get(ctx.create("a", commit_on_get=False), 10)
    ctx.get(first.cursor, 10)
    after = ctx.commit_cursor(first.cursor)

    assert ctx.committed() == 10
    assert after.offsets == ()
    # Going on from the commit's cursor: what came after it is delivered again.
    assert ctx.get(after, 5).by_partition() == {0: [10, 11, 12, 13, 14]}


def test_an_older_commit_that_comes_late_lowers_nothing(ctx: InstanceContext) -> None:
    ctx.publish(0, 30)
    first = ctx.get(ctx.create("a", commit_on_get=False), 10)
    second = ctx.get(first.cursor, 10)
    ctx.commit_cursor(second.cursor)
    ctx.commit_cursor(first.cursor)

    assert ctx.committed() == 20


def test_chains_of_gets_and_heartbeats_run_side_by_side(ctx: InstanceContext) -> None:
    ctx.publish(0, 100)
    beating = reading = ctx.create("a")
    seen = []
    for _ in range(10):
        beating = ctx.beat(beating)
        got = ctx.get(reading, 10)
        reading = got.cursor
        seen += [offset for _, offset in got.records]
        ctx.sleep(20_000)
        beating = ctx.beat(beating)
        ctx.sleep(20_000)

    assert seen == list(range(100))
    assert ctx.get(reading).records == ()
    assert ctx.committed() == 100


def test_a_heartbeat_s_cursor_carries_the_offsets_on(ctx: InstanceContext) -> None:
    """What careful consumers do: get, heartbeat that cursor while working, commit the last one, get."""
    ctx.publish(0, 20)
    cursor = ctx.create("a", commit_on_get=False)
    for committed in (10, 20):
        got = ctx.get(cursor, 10)
        cursor = got.cursor
        for _ in range(5):
            ctx.sleep(10_000)
            cursor = ctx.beat(cursor)
        cursor = ctx.commit_cursor(cursor)
        assert ctx.committed() == committed


def test_a_get_that_has_nothing_to_commit_after_silence_is_served(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.publish(0, 5)

    assert ctx.get(cursor).by_partition() == {0: [0, 1, 2, 3, 4]}


def test_a_chain_polled_for_hours_never_needs_a_new_cursor(ctx: InstanceContext) -> None:
    cursor = ctx.create("a")
    for hour in range(24 * 8):
        ctx.publish(0, 1)
        got = ctx.get(cursor)
        assert got.by_partition() == {0: [hour]}
        cursor = got.cursor
        for _ in range(3):
            ctx.sleep(29_000)
            cursor = ctx.get(cursor).cursor


@pytest.mark.parametrize("commit_on_get", [True, False])
def test_polling_an_empty_topic_costs_no_write(ctx: InstanceContext, *, commit_on_get: bool) -> None:
    cursor = ctx.get(ctx.create("a", commit_on_get=commit_on_get)).cursor
    writes = 0
    for _ in range(120):
        ctx.sleep(5_000)
        cursor = ctx.get(cursor).cursor
        writes += ctx.persisted
        ctx.beat(cursor)
        writes += ctx.persisted

    # Ten minutes: the time of the last use, once.
    assert writes <= 1
