"""UpdateGroup moves the whole group, and overtakes what its instances have in hand."""

from tests.harness.instances import InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import StartKind


def test_every_instance_goes_on_from_the_new_position(four: InstanceContext) -> None:
    a = four.get(four.create("a")).cursor
    b = four.get(four.create("b")).cursor
    a = four.get(a).cursor
    b = four.get(b).cursor
    owners = four.shares()
    four.update(StartKind.TRIM_HORIZON)

    assert four.shares() == owners
    assert four.get(a).by_partition() == {partition: list(range(10)) for partition in owners["a"]}
    assert four.get(b).by_partition() == {partition: list(range(10)) for partition in owners["b"]}


def test_what_was_delivered_before_is_not_committed_and_is_no_error(ctx: InstanceContext) -> None:
    ctx.publish(0, 20)
    old = ctx.get(ctx.create("a")).cursor
    ctx.update(StartKind.TRIM_HORIZON)
    ctx.commit_cursor(old)
    assert ctx.committed() is None
    got = ctx.get(old, 5)

    assert ctx.committed() is None
    assert got.by_partition() == {0: [0, 1, 2, 3, 4]}
    ctx.get(got.cursor)
    assert ctx.committed() == 5


def test_a_get_in_flight_is_superseded_too(ctx: InstanceContext) -> None:
    ctx.publish(0, 20)
    plan = ctx.begin_get(ctx.create("a"))
    ctx.update(StartKind.AT_TIME, ctx.now_ms + 1)
    ctx.sleep(1)
    got = ctx.answer_get(plan)
    ctx.publish(0, 1)

    assert ctx.get(got.cursor).by_partition() == {0: [20]}


def test_after_an_update_nothing_is_in_hand_also_where_the_server_has_restarted(four: InstanceContext) -> None:
    created = four.create("a")
    four.get(created)
    four.get(four.create("b"))
    four.restart()
    four.update(StartKind.TRIM_HORIZON)
    four.beat(created)

    assert four.counts() == [2, 2]


def test_a_get_in_flight_blocks_nothing(four: InstanceContext) -> None:
    created = four.create("a")
    plan = four.begin_get(created)
    four.update(StartKind.TRIM_HORIZON)
    four.answer_get(plan)
    four.beat(four.create("b"))
    four.beat(created)

    assert four.counts() == [2, 2]


def test_positions_move_back_and_forth_durably(ctx: InstanceContext) -> None:
    for time in (10, 20, 30):
        ctx.publish(0, time_ms=time)
    cursor = ctx.get(ctx.get(ctx.create("a")).cursor).cursor
    assert ctx.committed() == 3
    ctx.update(StartKind.AT_TIME, 20)
    ctx.restart()
    assert (ctx.at(), ctx.committed()) == (1, None)
    assert ctx.get(cursor).by_partition() == {0: [1, 2]}
    ctx.update(StartKind.LATEST)
    assert ctx.get(cursor).records == ()


def test_partitions_that_were_held_back_move_at_once(four: InstanceContext) -> None:
    a = four.get(four.create("a", commit_on_get=False)).cursor
    four.get(four.create("b"))
    # The new offset is before the delivered records: nevertheless none is in flight any more.
    four.update(StartKind.TRIM_HORIZON)
    four.beat(a)

    assert four.counts() == [2, 2]


def test_a_group_that_is_not_there_cannot_be_updated(ctx: InstanceContext) -> None:
    ctx.refused(InstanceProblem.UNKNOWN_GROUP, lambda: ctx.update(StartKind.LATEST))
    assert ctx.storage.nothing
