"""Instances and consumers share the partitions of a topic."""

import pytest
from tests.harness.consumers import FLIGHTS, SAME
from tests.harness.one_group import TIMEOUT_MS, OneGroupContext

from headrace.groups.configs import NewerGroupSettings
from headrace.groups.consumers.description import ConsumerGroupState
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import DropTopic
from headrace.groups.model import GroupKind, TopicFacts, TopicPartition


@pytest.fixture
def ctx() -> OneGroupContext:
    return OneGroupContext()


def test_a_consumer_waits_until_the_instance_has_nothing_in_flight(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"), 5)
    assert ctx.owned("o") == [0, 1, 2, 3]
    assert ctx.enter("A").waits
    assert ctx.has("A") == []
    # A get that reads keeps what it reads.
    reading = ctx.plan(cursor)
    assert ctx.owned("o") == [0, 1]
    assert ctx.beat("A").assignment == ((FLIGHTS, (2, 3)),)
    assert [each.partition for each in reading.reads] == [0, 1]
    assert ctx.described.state is ConsumerGroupState.STABLE


def test_a_get_that_reads_keeps_its_partitions(ctx: OneGroupContext) -> None:
    first = ctx.create("o")
    reading = ctx.plan(first)
    ctx.enter("A")
    ctx.beat_cursor(first)
    assert ctx.beat("A").assignment is None
    cursor = ctx.deliver(reading, 3)
    ctx.beat_cursor(cursor)
    assert ctx.beat("A").assignment is None
    ctx.get(cursor)
    assert ctx.beat("A").assignment == ((FLIGHTS, (2, 3)),)


def test_an_instance_gets_what_a_consumer_has_acknowledged(ctx: OneGroupContext) -> None:
    ctx.enter("A")
    ctx.beat("A", owned=SAME)
    cursor = ctx.get(ctx.create("o"))
    assert ctx.owned("o") == []
    ctx.beat("A")
    ctx.get(cursor)
    assert ctx.owned("o") == []
    ctx.beat("A", owned=(0, 1))
    assert ctx.owned("o") == [2, 3]
    assert [each.partition for each in ctx.plan(cursor).reads] == [2, 3]


def test_the_last_one_of_a_kind_leaves_everything_to_the_other(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    ctx.enter("A")
    ctx.get(cursor)
    ctx.settle("A")
    ctx.beat("A", epoch=-1)
    assert ctx.owned("o") == [0, 1, 2, 3]
    assert ctx.whole.kind is GroupKind.CONSUMER
    assert ctx.whole.state_name == "Stable"
    ctx.enter("A")
    ctx.get(cursor)
    ctx.settle("A")
    assert ctx.has("A") == [2, 3]
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.settle("A")
    assert ctx.has("A") == [0, 1, 2, 3]


def test_a_restart_moves_nothing(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"), 2)
    ctx.enter("A")
    ctx.enter("B")
    before = ctx.described
    for _ in range(2):
        ctx.restart()
        assert ctx.described == before
    cursor = ctx.get(cursor)
    ctx.settle("A", "B")
    held = {name: ctx.has(name) for name in "AB"}, ctx.owned("o")
    ctx.restart()
    ctx.settle("A", "B")
    ctx.get(cursor)
    assert ({name: ctx.has(name) for name in "AB"}, ctx.owned("o")) == held
    assert sorted(map(len, [*held[0].values(), held[1]])) == [1, 1, 2]


def test_a_silent_instance_that_returns_cannot_commit_what_a_consumer_has(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"), 5)
    ctx.enter("A")
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.settle("A")
    assert ctx.has("A") == [0, 1, 2, 3]
    assert ctx.problem(ctx.commit_cursor(cursor)) is InstanceProblem.UNRESERVED_PARTITION
    ctx.commit("A", 3, offset=7)
    ctx.beat("A", epoch=-1)
    assert ctx.stored.positions[TopicPartition("flights", 0)].offset == 7
    again = ctx.plan(ctx.create("o"))
    assert {each.offset for each in again.reads if each.partition == 0} == {7}


def test_a_consumer_that_does_not_give_up_is_removed(ctx: OneGroupContext) -> None:
    ctx.enter("A", timeout_ms=5_000)
    ctx.beat("A", owned=SAME)
    ctx.get(ctx.create("o", timeout_ms=60_000))
    ctx.beat("A")
    ctx.sleep(5_001)
    assert ctx.owned("o") == [0, 1, 2, 3]
    assert ctx.whole.part is not None
    assert ctx.whole.part.size == 0


def test_commits_for_partitions_of_an_instance_are_stale(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    epoch = ctx.enter("A").member_epoch
    ctx.get(cursor)
    epoch = ctx.beat("A").member_epoch
    errors = [
        ctx.commit("A", epoch, partition=each).result.partitions[TopicPartition("flights", each)] for each in range(4)
    ]
    stale = GroupError.STALE_MEMBER_EPOCH
    assert errors == [stale, stale, None, None]


def test_a_consumers_commit_invalidates_what_an_instance_had_before(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"), 5)
    ctx.enter("A")
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.settle("A")
    ctx.commit("A", 3, partition=3, offset=2)
    ctx.beat("A", epoch=-1)
    ctx.commit_cursor(cursor)
    assert ctx.stored.positions[TopicPartition("flights", 3)].offset == 2


def test_an_update_leaves_consumers_what_they_have(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    ctx.enter("A")
    ctx.get(cursor)
    ctx.settle("A")
    before = ctx.described
    ctx.update(100)
    assert ctx.described == before
    epoch = before.members[0].epoch
    ctx.commit("A", epoch, partition=2, offset=50)
    assert ctx.stored.positions[TopicPartition("flights", 2)].offset == 50


def test_tools_see_both(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    ctx.enter("A")
    ctx.get(cursor)
    ctx.settle("A")
    assert [(each.member_id, each.is_instance) for each in ctx.described.members] == [("A", False), ("flights/o", True)]
    assert [each.assigned[0].partitions for each in ctx.described.members] == [(2, 3), (0, 1)]
    assert ctx.described.assignor == "uniform"
    assert [each.instance for each in ctx.reservations()] == ["o", "o", "client/A", "client/A"]
    assert {each.reserved_until_ms for each in ctx.reservations()[2:]} == {ctx.now.wall_ms + 45_000}
    assert ctx.whole.size == 2
    assert ctx.delete_group().error is GroupError.NON_EMPTY_GROUP


def test_ranges_wait_until_the_instances_have_left(ctx: OneGroupContext) -> None:
    ctx.enter("A", assignor="range")
    cursor = ctx.get(ctx.create("o"))
    assert ctx.described.assignor == "uniform"
    ctx.settle("A")
    ctx.get(cursor)
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.settle("A")
    assert ctx.described.assignor == "range"


def test_new_partitions_go_to_both(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    ctx.enter("A")
    ctx.get(cursor)
    ctx.settle("A")
    ctx.change_topics(flights=TopicFacts(FLIGHTS, 8))
    ctx.settle("A")
    assert (len(ctx.has("A")), len(ctx.owned("o"))) == (4, 4)


def test_a_dropped_topic_takes_its_instances_along(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"))
    ctx.enter("A", topics=("flights", "trains"))
    ctx.get(cursor)
    ctx.settle("A")
    ctx.send(DropTopic("flights", FLIGHTS))
    ctx.settle("A")
    assert ctx.stored.balanced == ()
    assert [each.member_id for each in ctx.described.members] == ["A"]
    assert ctx.has("A") == []


def test_a_section_under_consumers_commits_only_what_they_do_not_read(ctx: OneGroupContext) -> None:
    ctx.enter("A")
    ctx.create("o")
    assert ctx.stored.positions == {}


def test_a_refused_consumer_leaves_no_trace() -> None:
    ctx = OneGroupContext(NewerGroupSettings(consumer_max_size=0))
    ctx.get(ctx.create("o"))
    before = ctx.stored
    assert ctx.refused(ctx.enter("A")) is GroupError.GROUP_MAX_SIZE_REACHED
    assert (ctx.stored, ctx.whole.kind, ctx.owned("o")) == (before, GroupKind.CLASSIC, [0, 1, 2, 3])
