from uuid import UUID

import pytest
from tests.harness.consumers import FLIGHTS, ConsumerContext

from headrace.groups import timers
from headrace.groups.configs import GroupConfig
from headrace.groups.consumers.events import Assigned
from headrace.groups.consumers.target import LARGEST_AT_ONCE, targets_of
from headrace.groups.model import TopicFacts


def test_a_small_group_has_its_target_at_once(ctx: ConsumerContext) -> None:
    for each in "ABC":
        ctx.enter(each)
    assert ctx.described.target_epoch == ctx.described.epoch
    assert ctx.remaining_ms(timers.target()) is None


def test_members_of_a_large_group_wait_for_a_common_target() -> None:
    ctx = ConsumerContext()
    ctx.facts["flights"] = TopicFacts(FLIGHTS, 2_000)
    first = ctx.enter("A")
    assert (first.member_epoch, first.waits) == (2, False)
    second = ctx.enter("B")
    assert (second.member_epoch, second.waits, second.assignment) == (2, True, ())
    assert ctx.described.state.value == "Assigning"
    ctx.enter("C")
    remaining_ms = ctx.remaining_ms(timers.target())
    assert remaining_ms is not None
    assert 20 <= remaining_ms <= 200
    ctx.sleep(remaining_ms)
    assert ctx.described.target_epoch == ctx.described.epoch == 4
    ctx.settle("A", "B", "C")
    assert sum(len(ctx.has(each)) for each in "ABC") == 2_000


class TestOfATargetThatTakesLong:
    """It is computed outside the event loop."""

    @pytest.fixture
    def ctx(self) -> ConsumerContext:
        ctx = ConsumerContext()
        ctx.facts["flights"] = TopicFacts(FLIGHTS, LARGEST_AT_ONCE)
        ctx.enter("A")
        return ctx

    def test_members_wait_for_it(self, ctx: ConsumerContext) -> None:
        (assign,) = ctx.assigns
        assert (ctx.epochs["A"], ctx.has("A"), ctx.described.state.value) == (1, [], "Assigning")
        assert ctx.beat("A").waits
        assert ctx.assigns == []
        ctx.send(Assigned(assign, targets_of(assign)))
        assert len(dict(ctx.beat("A").assignment or ())[FLIGHTS]) == LARGEST_AT_ONCE
        assert ctx.epochs["A"] == 2

    def test_an_outdated_one_is_computed_again(self, ctx: ConsumerContext) -> None:
        (assign,) = ctx.assigns
        ctx.enter("B")
        ctx.send(Assigned(assign, targets_of(assign)))
        assert (ctx.described.target_epoch, len(ctx.assigns)) == (1, 1)
        (assign,) = ctx.assigns
        ctx.send(Assigned(assign, targets_of(assign)))
        ctx.settle("A", "B")
        assert ctx.epochs == {"A": 3, "B": 3}

    def test_a_group_that_always_changes_has_a_target_at_last(self, ctx: ConsumerContext) -> None:
        for name in "BC":
            (assign,) = ctx.assigns
            ctx.enter(name)
            ctx.send(Assigned(assign, targets_of(assign)))
            assert ctx.described.target_epoch == 1
        (assign,) = ctx.assigns
        ctx.enter("D")
        ctx.beat("B", epoch=-1)
        ctx.beat("C", topics=("trains",))
        ctx.change_topics(flights=TopicFacts(FLIGHTS, 100))
        ctx.send(Assigned(assign, targets_of(assign)))
        # What is left of it: A's part of the present partitions.
        assert (ctx.described.target_epoch, ctx.described.epoch) == (4, 8)
        targets = {each.member_id: each.target for each in ctx.described.members}
        assert [len(each.partitions) for each in targets["A"]] == [34]
        assert (targets["C"], targets["D"]) == ((), ())
        ctx.sleep(1_000)
        ctx.settle("A", "C", "D")
        assert [len(ctx.has(each)) for each in "AD"] == [50, 50]

    def test_many_different_subscriptions_take_long_too(self) -> None:
        ctx = ConsumerContext()
        for name in "AB":
            ctx.enter(name, topics=tuple(f"{name}{number}" for number in range(LARGEST_AT_ONCE // 2)))
        assert len(ctx.assigns) == 1

    def test_one_of_a_restored_group_is_discarded(self, ctx: ConsumerContext) -> None:
        (assign,) = ctx.assigns
        ctx.restart()
        ctx.send(Assigned(assign, targets_of(assign)))
        assert ctx.described.target_epoch == 1
        ctx.change_topics(flights=TopicFacts(FLIGHTS, 4))
        assert ctx.beat("A").assignment == ((FLIGHTS, (0, 1, 2, 3)),)

    def test_a_failed_one_is_tried_again(self, ctx: ConsumerContext) -> None:
        (assign,) = ctx.assigns
        ctx.send(Assigned(assign, None))
        ctx.beat("A")
        assert ctx.assigns == []
        ctx.sleep(1_000)
        assert len(ctx.assigns) == 1


def test_a_configured_interval_is_exact() -> None:
    ctx = ConsumerContext(config=GroupConfig(consumer_assignment_interval_ms=1_000))
    assert ctx.enter("A").member_epoch == 2
    # As in Kafka: a second joiner within a second gets the earlier target.
    assert ctx.enter("B").member_epoch == 2
    ctx.sleep(999)
    assert ctx.beat("B").waits
    ctx.sleep(1)
    ctx.settle("A", "B")
    assert ctx.epochs == {"A": 3, "B": 3}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_partitions_are_added(ctx: ConsumerContext, assignor: str) -> None:
    ctx.enter("A", assignor=assignor)
    ctx.change_topics(flights=TopicFacts(FLIGHTS, 6))
    assert ctx.beat("A").assignment == ((FLIGHTS, (0, 1, 2, 3, 4, 5)),)


def test_a_deleted_topic_is_given_up(ctx: ConsumerContext) -> None:
    ctx.enter("A", topics=("flights", "trains"))
    ctx.drop_topic("trains")
    result = ctx.beat("A")
    assert (result.assignment, result.waits) == (((FLIGHTS, (0, 1, 2, 3)),), True)
    assert not ctx.beat("A", owned=(0, 1, 2, 3)).waits


def test_a_recreated_topic_is_another_one(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    later = UUID(int=9)
    ctx.change_topics(flights=TopicFacts(later, 1))
    assert ctx.beat("A").assignment == ()
    assert ctx.beat("A", owned=()).assignment == ((later, (0,)),)


def test_other_topics_change_nothing(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.change_topics(trains=None, ships=TopicFacts(UUID(int=9), 1))
    assert not ctx.persisted
    assert ctx.beat("A").member_epoch == 2


def test_static_members_come_first_with_range(ctx: ConsumerContext) -> None:
    ctx.enter("A", assignor="range")
    ctx.enter("B", assignor="range", instance="z")
    ctx.settle("A", "B")
    assert (ctx.has("B"), ctx.has("A")) == ([0, 1], [2, 3])
