"""A partition moves without duplicates while its holder is alive, and without loss when it is not."""

from tests.harness.instances import TIMEOUT_MS, InstanceContext

from headrace.groups.errors import InstanceProblem


def test_the_example_of_the_product_documentation(ctx: InstanceContext) -> None:
    """A reads 1-100, gets again (100 committed), reads 101-200, stops for over 30 s; B gets 101-200."""
    ctx.publish(0, 200)
    first = ctx.get(ctx.create("A"), 100)
    assert first.by_partition() == {0: list(range(100))}
    assert ctx.committed() is None

    second = ctx.get(first.cursor, 100)
    assert ctx.committed() == 100
    assert second.by_partition() == {0: list(range(100, 200))}

    b = ctx.get(ctx.create("B"))
    assert b.records == ()
    ctx.sleep(TIMEOUT_MS)
    assert ctx.get(b.cursor).records == ()
    ctx.sleep(1)
    assert ctx.get(b.cursor).by_partition() == {0: list(range(100, 200))}


def test_the_holder_gives_up_with_its_next_request_after_its_commit(four: InstanceContext) -> None:
    a = four.get(four.create("a"))
    b = four.get(four.create("b"))
    assert b.records == ()
    assert four.counts() == [0, 4]

    a = four.get(a.cursor)
    assert four.counts() == [2, 2]
    assert [four.committed(partition) for partition in range(4)] == [10] * 4
    assert a.records == ()
    for partition in range(4):
        four.publish(partition)
    assert {*four.get(b.cursor).records, *four.get(a.cursor).records} == {(partition, 10) for partition in range(4)}


def test_partitions_with_messages_in_flight_do_not_move(four: InstanceContext) -> None:
    a = four.get(four.create("a", commit_on_get=False))
    b = four.get(four.create("b"))
    a = four.get(a.cursor)
    assert four.counts() == [0, 4]
    assert b.records == four.get(b.cursor).records == ()

    four.commit_cursor(a.cursor)
    assert four.counts() == [2, 2]


def test_partitions_to_give_up_are_not_read_further(four: InstanceContext) -> None:
    a = four.get(four.create("a", commit_on_get=False))
    four.get(four.create("b"))
    for partition in range(4):
        four.publish(partition, 5)
    further = four.get(a.cursor)

    assert len(further.partitions) == 2
    assert dict(further.cursor.offsets) == {
        partition: 15 if partition in further.partitions else 10 for partition in range(4)
    }


def test_only_what_has_nothing_in_flight_moves(four: InstanceContext) -> None:
    """The limit left two partitions unread: they go first."""
    a = four.get(four.create("a", commit_on_get=False), 20)
    assert a.partitions == [0, 1]
    four.get(four.create("b"))
    # 2 and 3 are those to be given up, and nothing of them is in flight: a heartbeat is enough.
    four.beat(a.cursor)

    assert four.shares() == {"a": [0, 1], "b": [2, 3]}


def test_a_heartbeat_gives_up_nothing_that_is_in_flight(four: InstanceContext) -> None:
    a = four.get(four.create("a"))
    four.get(four.create("b"))
    four.beat(a.cursor)

    assert four.counts() == [0, 4]


def test_a_get_that_is_still_reading_holds_on_to_its_partitions(four: InstanceContext) -> None:
    created = four.create("a")
    plan = four.begin_get(created)
    four.beat(four.create("b"))
    # Heartbeats use a separate chain: nothing is known to be in flight, but a read is.
    four.beat(created)
    assert four.counts() == [0, 4]

    a = four.answer_get(plan)
    assert len(a.records) == 40
    four.beat(created)
    assert four.counts() == [0, 4]
    four.get(a.cursor)
    assert four.counts() == [2, 2]


def test_a_get_that_failed_holds_on_to_nothing(four: InstanceContext) -> None:
    created = four.create("a")
    plan = four.begin_get(created)
    four.beat(four.create("b"))
    four.answer_get(plan, 0)
    four.beat(created)

    assert four.counts() == [2, 2]


def test_a_get_of_an_earlier_tenure_says_nothing_of_the_present_one(four: InstanceContext) -> None:
    """Its read takes longer than its membership; the instance returns, and reads again."""
    created = four.create("a")
    slow = four.begin_get(created)
    four.sleep(TIMEOUT_MS + 1)
    present = four.begin_get(created)
    four.answer_get(slow, 0)
    four.beat(four.create("b"))
    four.beat(created)
    assert four.counts() == [0, 4]

    four.answer_get(present, 0)
    four.beat(created)
    assert four.counts() == [2, 2]


def test_a_get_of_an_earlier_life_says_nothing_of_the_present_one(four: InstanceContext) -> None:
    slow = four.begin_get(four.create("a"))
    again = four.create("a")
    present = four.begin_get(again)
    four.answer_get(slow)
    four.beat(four.create("b"))
    four.beat(again)
    assert four.counts() == [0, 4]

    four.answer_get(present, 0)
    four.beat(again)
    assert four.counts() == [2, 2]


def test_an_answer_that_got_lost_does_not_lose_its_records_nor_hold_them_for_ever(four: InstanceContext) -> None:
    created = four.create("a")
    lost = four.get(created)
    b = four.get(four.create("b"))
    # The same request again: what is in flight is delivered again, also where it is to be given up.
    again = four.get(created)
    assert again.records == lost.records

    four.get(again.cursor)
    assert four.counts() == [2, 2]
    assert four.get(b.cursor).records == ()
    assert [four.committed(partition) for partition in range(4)] == [10] * 4


def test_heartbeats_keep_what_is_in_hand_however_long_others_wait() -> None:
    """A live holder that says it is at work loses nothing, so nothing is delivered twice."""
    ctx = InstanceContext(2)
    ctx.publish(0, 5)
    ctx.publish(1, 5)
    beating = ctx.create("holder", commit_on_get=False)
    holder = ctx.get(beating).cursor
    waiting = ctx.get(ctx.create("waiting")).cursor
    for _ in range(60):
        ctx.sleep(TIMEOUT_MS // 3)
        waiting = ctx.get(waiting).cursor
        beating = ctx.beat(beating)
    assert ctx.counts() == [0, 2]

    ctx.commit_cursor(holder)
    assert (ctx.committed(0), ctx.committed(1)) == (5, 5)
    assert ctx.counts() == [1, 1]
    assert ctx.get(waiting).records == ()


def test_a_holder_that_reads_on_and_neither_commits_nor_heartbeats_loses_what_others_are_due(
    ctx: InstanceContext,
) -> None:
    """Oracle: with commitOnGet=false, the next commit after 30 s fails; it does not if no other instance waits."""
    ctx.publish(0, 5)
    a = ctx.get(ctx.create("a", commit_on_get=False))
    two = InstanceContext(2)
    two.publish(0, 5)
    two.publish(1, 5)
    holder = two.get(two.create("holder", commit_on_get=False)).cursor
    waiting = two.get(two.create("waiting")).cursor
    for _ in range(3):
        two.sleep(TIMEOUT_MS // 3)
        two.beat(waiting)
        holder = two.get(holder).cursor
    assert two.counts() == [0, 2]

    two.sleep(1)
    two.get(holder)
    assert two.shares() == {"holder": [0], "waiting": [1]}
    assert two.get(waiting).by_partition() == {1: [0, 1, 2, 3, 4]}
    error = two.refused(InstanceProblem.UNRESERVED_PARTITION, lambda: two.commit_cursor(holder))
    assert error.partition == 1
    assert str(error) == "Trying to commit unreserved partition 1"
    # All or nothing, and the instance is still in.
    assert two.committed(0) is None
    assert "holder" in two.shares()
    # Alone in the group, it may take any time.
    for _ in range(9):
        ctx.sleep(TIMEOUT_MS)
        ctx.get(a.cursor)
    ctx.commit_cursor(a.cursor)
    assert ctx.committed() == 5


def test_the_timeout_of_a_holder_begins_with_the_next_claim() -> None:
    ctx = InstanceContext(2)
    ctx.publish(0, 5)
    ctx.publish(1, 5)
    holder = ctx.get(ctx.create("holder", commit_on_get=False)).cursor
    for _ in range(3):
        ctx.sleep(TIMEOUT_MS)
        holder = ctx.get(holder).cursor
    ctx.get(ctx.create("waiting", timeout_ms=10 * TIMEOUT_MS))
    ctx.sleep(TIMEOUT_MS)
    holder = ctx.get(holder).cursor
    assert ctx.counts() == [0, 2]
    ctx.sleep(1)
    ctx.get(holder)
    assert ctx.counts() == [1, 1]


def test_each_request_of_a_slow_holder_gives_up_what_its_own_commit_covers_first() -> None:
    ctx = InstanceContext(2)
    ctx.publish(0, 5)
    ctx.publish(1, 5)
    holder = ctx.get(ctx.create("holder")).cursor
    waiting = ctx.get(ctx.create("waiting")).cursor
    for _ in range(4):
        ctx.sleep(TIMEOUT_MS // 3)
        ctx.beat(waiting)
        if ctx.shares()["waiting"]:
            break
        holder = ctx.get(holder).cursor

    assert ctx.shares() == {"holder": [0], "waiting": [1]}
    assert (ctx.committed(0), ctx.committed(1)) == (5, 5)


def test_partitions_that_come_back_go_on_from_the_group_s_position() -> None:
    ctx = InstanceContext(2)
    ctx.publish(0, 4)
    ctx.publish(1, 4)
    a = ctx.get(ctx.create("a")).cursor
    b = ctx.get(ctx.create("b")).cursor
    stale = a
    a = ctx.get(a).cursor
    ctx.publish(1, 4)
    b = ctx.get(b).cursor
    ctx.get(b)
    assert ctx.committed(1) == 8
    ctx.sleep(20_000)
    a = ctx.get(a).cursor
    ctx.sleep(10_001)
    assert ctx.shares() == {"a": [0, 1]}
    # An old request of a arrives late: what it commits was given up in good order, and is not its any more.
    got = ctx.get(stale)
    assert got.records == ()
    assert (ctx.committed(0), ctx.committed(1)) == (4, 8)
