"""Shares of instances that join, leave and take over, as Oracle documents it."""

import pytest
from tests.harness.instances import TIMEOUT_MS, InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import GroupCursor


def settle(ctx: InstanceContext, cursors: dict[str, GroupCursor]) -> None:
    """Poll with all instances until the assignment is stable."""
    for _ in range(3):
        for name, cursor in cursors.items():
            cursors[name] = ctx.get(cursor).cursor


def polling(ctx: InstanceContext, instances: int) -> dict[str, GroupCursor]:
    """A settled group."""
    cursors = {f"i{number}": ctx.create(f"i{number}") for number in range(instances)}
    settle(ctx, cursors)
    return cursors


@pytest.mark.parametrize(
    ("partitions", "instances", "shares"),
    [
        (8, 4, [2, 2, 2, 2]),
        (10, 4, [2, 2, 3, 3]),
        (1, 1, [1]),
        (3, 3, [1, 1, 1]),
        (2, 5, [0, 0, 0, 1, 1]),
        (7, 2, [3, 4]),
    ],
)
def test_partitions_are_balanced_within_one(partitions: int, instances: int, shares: list[int]) -> None:
    ctx = InstanceContext(partitions)
    polling(ctx, instances)

    assert ctx.counts() == shares
    assert ctx.whole.balanced["flights"].is_settled


def test_the_first_get_holds_every_free_partition_and_returns_its_records(four: InstanceContext) -> None:
    got = four.get(four.create("a"))

    assert got.by_partition() == {partition: list(range(10)) for partition in range(4)}
    assert four.shares() == {"a": [0, 1, 2, 3]}


def test_a_cursor_alone_makes_no_instance(four: InstanceContext) -> None:
    four.create("a")

    assert four.shares() == {}
    assert [each.instance for each in four.reservations()] == [None] * 4


def test_a_heartbeat_makes_an_instance(four: InstanceContext) -> None:
    cursor = four.create("a")
    assert four.beat(cursor) == cursor

    assert four.shares() == {"a": [0, 1, 2, 3]}


def test_a_commit_makes_no_instance(four: InstanceContext) -> None:
    four.commit_cursor(four.create("a"))

    assert four.shares() == {}


def test_surplus_instances_are_served_empty_lists_and_move_nothing_by_joining() -> None:
    ctx = InstanceContext(2)
    cursors = polling(ctx, 2)
    before, generation = ctx.shares(), ctx.whole.balanced["flights"].generation
    ctx.publish(0, 5)
    ctx.publish(1, 5)
    surplus = ctx.get(ctx.create("late"))

    assert surplus.records == ()
    assert ctx.shares() == {**before, "late": []}
    assert ctx.whole.balanced["flights"].generation == generation
    assert len(ctx.get(cursors["i0"]).records) == 5


def test_a_surplus_instance_takes_over_with_the_cursor_it_holds() -> None:
    ctx = InstanceContext(1)
    first = ctx.get(ctx.create("first")).cursor
    ctx.publish(0, 3)
    waiting = ctx.get(ctx.create("waiting"))
    assert waiting.records == ()

    for _ in range(4):
        ctx.sleep(TIMEOUT_MS // 3)
        waiting = ctx.get(waiting.cursor)
    assert waiting.by_partition() == {0: [0, 1, 2]}
    assert ctx.shares() == {"waiting": [0]}
    # The one that was away is surplus now.
    assert ctx.get(first).records == ()
    assert ctx.shares() == {"waiting": [0], "first": []}


def test_a_surplus_instance_stays_in_the_group_by_heartbeats() -> None:
    ctx = InstanceContext(1)
    first = ctx.get(ctx.create("first")).cursor
    surplus = ctx.create("surplus")
    for _ in range(20):
        ctx.sleep(TIMEOUT_MS // 2)
        first = ctx.get(first).cursor
        surplus = ctx.beat(surplus)

    assert ctx.shares() == {"first": [0], "surplus": []}
    ctx.sleep(TIMEOUT_MS)
    surplus = ctx.beat(surplus)
    ctx.sleep(1)
    ctx.publish(0)
    assert ctx.get(surplus).partitions == [0]


def test_instances_are_not_notified_of_a_rebalance() -> None:
    """A live instance notices it by its partitions alone."""
    ctx = InstanceContext(4)
    a, b = ctx.create("a"), ctx.create("b")
    a = ctx.get(a).cursor
    b = ctx.get(b).cursor
    a = ctx.get(a).cursor
    for partition in range(4):
        ctx.publish(partition)

    assert ctx.get(a).partitions == ctx.shares()["a"]
    assert ctx.get(b).partitions == ctx.shares()["b"]
    assert ctx.counts() == [2, 2]


def test_a_silent_instance_is_in_for_exactly_its_timeout(ctx: InstanceContext) -> None:
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(TIMEOUT_MS)
    assert ctx.shares() == {"a": [0]}
    ctx.get(cursor)
    assert ctx.shares() == {"a": [0]}

    ctx.sleep(TIMEOUT_MS + 1)
    assert ctx.shares() == {}


def test_silence_counts_also_when_the_timer_fires_late(ctx: InstanceContext) -> None:
    a = ctx.get(ctx.create("a")).cursor
    b = ctx.create("b")
    ctx.publish(0, 5)
    # No timer fires: the server was busy. The next request comes first.
    ctx.now_ms += TIMEOUT_MS + 1
    assert ctx.get(b).by_partition() == {0: [0, 1, 2, 3, 4]}
    assert ctx.shares() == {"b": [0]}
    assert [key.member_id for key in ctx.timers if key.member_id] == ["b"]
    # It arrives at last, at the instance that has returned by then.
    ctx.get(a)
    ctx.sleep(0)
    assert ctx.shares() == {"b": [0], "a": []}


def test_every_instance_has_its_own_timeout() -> None:
    ctx = InstanceContext(2)
    ctx.get(ctx.create("patient", timeout_ms=60_000))
    ctx.get(ctx.create("hasty", timeout_ms=1_000))
    ctx.sleep(1_001)

    assert ctx.shares() == {"patient": [0, 1]}
    ctx.sleep(60_000 - 1_001)
    assert ctx.shares() == {"patient": [0, 1]}
    ctx.sleep(1)
    assert ctx.shares() == {}


def test_reservations_show_who_holds_what_and_until_when() -> None:
    ctx = InstanceContext(2)
    joined = ctx.now_ms
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.sleep(1_000)
    ctx.get(ctx.create("b", timeout_ms=5_000))
    first, second = ctx.reservations()
    assert (first.instance, second.instance) == ("a", "a")
    assert first.reserved_until_ms == joined + TIMEOUT_MS

    ctx.get(cursor)
    first, second = ctx.reservations()
    assert (first.instance, second.instance) == ("a", "b")
    assert first.reserved_until_ms == ctx.now_ms + TIMEOUT_MS
    assert second.reserved_until_ms == ctx.now_ms + 5_000
    assert (first.committed, second.committed) == (None, None)


def test_heartbeats_keep_reservations_while_a_batch_takes_long(ctx: InstanceContext) -> None:
    ctx.publish(0, 3)
    got = ctx.get(ctx.create("a"))
    beating = got.cursor
    other = ctx.create("b")
    for _ in range(10):
        ctx.sleep(20_000)
        beating = ctx.beat(beating)
        other = ctx.beat(other)

    assert ctx.commit_cursor(beating).offsets == ()
    assert ctx.committed() == 3


def test_a_topic_that_grows_has_its_new_partitions_read_from_their_beginning() -> None:
    ctx = InstanceContext(1)
    cursor = ctx.get(ctx.create("a")).cursor
    ctx.logs["flights"].append(type(ctx.logs["flights"][0])())
    ctx.publish(1, 4)

    assert ctx.get(cursor).by_partition() == {1: [0, 1, 2, 3]}
    assert ctx.shares() == {"a": [0, 1]}
    ctx.restart()
    assert ctx.at(1) == 0


def test_a_cursor_of_a_group_that_is_gone_is_refused(ctx: InstanceContext) -> None:
    cursor = ctx.create("a")
    ctx.drop_topic("flights")

    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.get(cursor))
    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.beat(cursor))
    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.commit_cursor(cursor))
    assert ctx.storage.nothing
