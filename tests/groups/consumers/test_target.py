from uuid import UUID

import pytest
from tests.harness.consumers import FLIGHTS, ConsumerContext

from headrace.groups import timers
from headrace.groups.configs import GroupConfig
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
