"""An instance restarts under its name; the server restarts under its instances."""

from tests.harness.instances import TIMEOUT_MS, InstanceContext

from headrace.groups.errors import InstanceProblem
from headrace.groups.instances.model import StartKind


def test_a_restarted_instance_keeps_its_partitions_and_resumes_from_the_committed_positions(
    four: InstanceContext,
) -> None:
    a = four.get(four.create("a"), 5)
    b = four.get(four.create("b"))
    a = four.get(a.cursor, 15)
    before = four.shares()
    assert four.counts() == [2, 2]
    # It dies with records in hand, and comes back under its name at once.
    again = four.create("a", StartKind.LATEST)
    assert four.shares() == before
    got = four.get(again)
    assert got.partitions == before["a"]
    assert got.by_partition()[0][0] == 5
    assert four.get(b.cursor).partitions == before["b"]


def test_a_restarted_instance_brings_its_own_timeout_and_commit_on_get(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    ctx.get(ctx.create("a"), 5)
    got = ctx.get(ctx.create("a", timeout_ms=5_000, commit_on_get=False), 5)
    ctx.get(got.cursor, 5)
    assert ctx.committed() is None
    ctx.sleep(5_000)
    assert ctx.shares() == {"a": [0]}
    ctx.sleep(1)
    assert ctx.shares() == {}


def test_the_older_cursor_can_no_longer_commit(ctx: InstanceContext) -> None:
    ctx.publish(0, 10)
    old = ctx.get(ctx.create("a"), 5).cursor
    new = ctx.create("a")

    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(old))
    # Its get is served all the same, at the present position, and commits nothing.
    got = ctx.get(old, 5)
    assert got.by_partition() == {0: [0, 1, 2, 3, 4]}
    assert ctx.get(got.cursor, 5).records == got.records
    assert ctx.committed() is None
    assert ctx.get(ctx.get(new, 5).cursor, 5).by_partition() == {0: [5, 6, 7, 8, 9]}
    assert ctx.committed() == 5


def test_the_older_cursor_keeps_nothing_alive(ctx: InstanceContext) -> None:
    old = ctx.get(ctx.create("a")).cursor
    ctx.create("a")
    for _ in range(3):
        ctx.sleep(10_000)
        ctx.get(old)
        ctx.beat(old)
    assert ctx.shares() == {"a": [0]}
    ctx.sleep(1)
    assert ctx.shares() == {}
    # The newer cursor is unused: then the older one stays valid.
    ctx.publish(0, 2)
    assert ctx.get(old).by_partition() == {0: [0, 1]}


def test_of_two_cursors_made_for_a_name_the_newer_one_takes_over_at_its_first_use(ctx: InstanceContext) -> None:
    """An SDK that repeats CreateGroupCursor after a lost answer holds the second."""
    ctx.publish(0, 10)
    first, second = ctx.create("a"), ctx.create("a")
    got = ctx.get(first, 5)
    assert len(got.records) == 5
    assert ctx.get(second, 5).records == got.records
    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(got.cursor))


def test_a_restart_gives_up_what_its_earlier_life_had_in_hand(four: InstanceContext) -> None:
    four.get(four.create("a", commit_on_get=False))
    b = four.get(four.create("b")).cursor
    four.get(four.create("a"), 0)

    assert four.counts() == [2, 2]
    assert len(four.get(b).records) == 20


def test_groups_and_reservations_survive_a_restart_of_the_server(four: InstanceContext) -> None:
    a = four.get(four.create("a")).cursor
    b = four.get(four.create("b")).cursor
    a = four.get(a).cursor
    before = four.shares()
    four.restart()

    assert four.shares() == before
    for partition in range(4):
        four.publish(partition)
    assert four.get(a).partitions == before["a"]
    assert four.get(b).partitions == before["b"]


def test_a_restart_of_the_server_restarts_the_timeout(ctx: InstanceContext) -> None:
    ctx.get(ctx.create("a"))
    ctx.sleep(TIMEOUT_MS - 1)
    ctx.restart()
    ctx.sleep(TIMEOUT_MS)
    assert ctx.shares() == {"a": [0]}
    ctx.sleep(1)
    assert ctx.shares() == {}


def test_cursors_go_on_after_a_restart_of_the_server_with_what_they_carry(ctx: InstanceContext) -> None:
    ctx.publish(0, 20)
    got = ctx.get(ctx.create("a"), 10)
    ctx.restart()
    second = ctx.get(got.cursor, 10)

    assert ctx.committed() == 10
    assert second.by_partition() == {0: list(range(10, 20))}


def test_after_a_restart_no_partition_moves_before_its_holder_has_reported(
    four: InstanceContext,
) -> None:
    created = four.create("a")
    a = four.get(created)
    b = four.get(four.create("b")).cursor
    four.restart()
    # A chain of heartbeats knows nothing of what the gets brought.
    four.beat(created)
    assert four.counts() == [0, 4]
    assert four.get(b).records == ()

    four.get(a.cursor)
    assert four.counts() == [2, 2]
    assert [four.committed(partition) for partition in range(4)] == [10] * 4


def test_a_get_from_before_a_restart_of_the_server_is_not_taken_for_one_after_it(four: InstanceContext) -> None:
    """Storage failed, say, and the machine was made again under a get that was reading."""
    created = four.create("a")
    before = four.begin_get(created)
    four.sleep(1)
    four.restart()
    after = four.begin_get(created)
    four.answer_get(before, 0)
    four.beat(four.create("b"))
    four.beat(created)
    assert four.counts() == [0, 4]

    four.get(four.answer_get(after).cursor)
    assert four.counts() == [2, 2]


def test_the_timeout_of_a_slow_holder_restarts_with_the_server(four: InstanceContext) -> None:
    a = four.get(four.create("a", commit_on_get=False)).cursor
    b = four.get(four.create("b")).cursor
    four.sleep(20_000)
    four.restart()
    four.sleep(20_000)
    a = four.get(a).cursor
    four.beat(b)
    assert four.counts() == [0, 4]
    four.sleep(10_001)
    four.get(b)
    a = four.get(a).cursor
    assert four.counts() == [2, 2]


def test_a_loss_by_force_is_remembered_over_a_restart_of_the_server() -> None:
    ctx = InstanceContext(2)
    ctx.publish(0, 5)
    ctx.publish(1, 5)
    a = ctx.get(ctx.create("a", commit_on_get=False)).cursor
    b = ctx.get(ctx.create("b")).cursor
    ctx.sleep(20_000)
    ctx.get(a)
    ctx.beat(b)
    ctx.sleep(10_001)
    ctx.get(a)
    assert ctx.counts() == [1, 1]
    ctx.restart()

    assert ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(a)).partition == 1


def test_a_loss_by_silence_is_remembered_over_a_restart_of_the_server(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    a = ctx.get(ctx.create("a")).cursor
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.get(ctx.create("b"))
    ctx.restart()

    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.get(a))


def test_a_new_cursor_is_newer_than_all_before_over_a_restart_of_the_server(ctx: InstanceContext) -> None:
    ctx.publish(0, 5)
    old = ctx.get(ctx.create("a")).cursor
    ctx.restart()
    new = ctx.create("a")
    ctx.restart()

    assert new.incarnation > old.incarnation
    ctx.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: ctx.commit_cursor(old))
    assert len(ctx.get(new).records) == 5
