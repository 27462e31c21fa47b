"""Instances join groups of Kafka's clients, and these join groups with instances."""

import pytest
from tests.harness.mixed_groups import owning
from tests.harness.one_group import TIMEOUT_MS, OneGroupContext

from headrace.groups.configs import MigrationPolicy, NewerGroupSettings
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.model import GroupKind, TopicPartition


def with_policy(policy: MigrationPolicy) -> OneGroupContext:
    return OneGroupContext(NewerGroupSettings(consumer_migration_policy=policy))


@pytest.fixture
def ctx() -> OneGroupContext:
    return OneGroupContext()


def test_an_instance_converts_a_classic_group(ctx: OneGroupContext) -> None:
    cursor = ctx.create("o")
    (member,) = ctx.classic({"c": [0, 1, 2, 3]}, owning())
    cursor = ctx.get(cursor)
    assert (ctx.whole.kind, ctx.owned("o")) == (GroupKind.CONSUMER, [])
    assert {each.member_id: each.is_classic for each in ctx.described.members} == {member: True, "flights/o": False}
    assert ctx.error_of(member, 1) is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.rejoin(member, owning(0, 1, 2, 3)) == [0, 1]
    assert ctx.rejoin(member, owning(0, 1)) == [0, 1]
    assert ctx.owned("o") == [2, 3]


def test_the_group_is_classic_again_without_the_instance(ctx: OneGroupContext) -> None:
    cursor = ctx.create("o")
    (member,) = ctx.classic({"c": [0, 1, 2, 3]}, owning())
    ctx.get(cursor)
    for _ in range(6):
        ctx.rejoin(member, owning())
        assert ctx.whole.kind is GroupKind.CONSUMER
        ctx.sleep(TIMEOUT_MS // 6 + 1)
    ctx.heartbeat(member, 1)
    assert (ctx.whole.kind, ctx.owned("o")) == (GroupKind.CLASSIC, [])


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_the_policy_may_forbid_it(policy: MigrationPolicy) -> None:
    ctx = with_policy(policy)
    cursor = ctx.create("o")
    ctx.classic({"c": [0, 1, 2, 3]})
    for request in (ctx.beat_cursor, lambda each: ctx.update(0)):
        assert ctx.problem(request(cursor)) is InstanceProblem.GROUP_IN_USE
    assert ctx.whole.kind is GroupKind.CLASSIC


def test_the_first_cursor_leaves_a_classic_group_as_it_is(ctx: OneGroupContext) -> None:
    ctx.classic({"c": [0, 1, 2, 3]})
    cursor = ctx.create("o")
    assert (ctx.whole.kind, ctx.stored.positions) == (GroupKind.CLASSIC, {})
    ctx.beat_cursor(cursor)
    assert ctx.whole.kind is GroupKind.CONSUMER


def test_a_group_that_rebalances_lets_the_instance_wait(ctx: OneGroupContext) -> None:
    cursor = ctx.create("o")
    ctx.classic({"c": [0, 1, 2, 3]})
    ctx.join(version=3)
    assert ctx.problem(ctx.beat_cursor(cursor)) is InstanceProblem.UNAVAILABLE


def test_records_from_before_the_classic_members_cannot_be_committed(ctx: OneGroupContext) -> None:
    cursor = ctx.get(ctx.create("o"), 5)
    ctx.sleep(TIMEOUT_MS + 1)
    ctx.classic({"c": [0, 1, 2, 3]})
    assert ctx.problem(ctx.commit_cursor(cursor)) is InstanceProblem.UNRESERVED_PARTITION
    assert ctx.whole.kind is GroupKind.CLASSIC
    assert ctx.stored.positions[TopicPartition("flights", 0)].offset == 0


def test_a_classic_member_joins_a_consumer_group_with_instances(ctx: OneGroupContext) -> None:
    ctx.enter("A")
    cursor = ctx.get(ctx.create("o"))
    ctx.beat("A", epoch=-1)
    assert ctx.owned("o") == [0, 1, 2, 3]
    joined = ctx.join(protocols=owning()).result
    ctx.get(cursor)
    assert ctx.rejoin(joined.member_id, owning()) == [2, 3]
    assert ctx.owned("o") == [0, 1]


def test_a_classic_member_does_not_join_a_group_of_instances(ctx: OneGroupContext) -> None:
    ctx.get(ctx.create("o"))
    assert ctx.join(version=3).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_an_unused_section_remains_while_consumers_read_its_topic(ctx: OneGroupContext) -> None:
    ctx.create("o")
    ctx.enter("A")
    ctx.commit("A", ctx.epochs["A"])
    for _ in range(3_000):
        ctx.sleep(40_000)
        ctx.beat("A")
    assert ctx.section.topic == "flights"
    assert ctx.stored.positions[TopicPartition("flights", 0)].offset == 1
