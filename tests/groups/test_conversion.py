"""Classic groups and consumer groups with members become each other (`group.consumer.migration.policy`)."""

import pytest
from tests.harness.consumers import FLIGHTS
from tests.harness.mixed_groups import EAGER, MixedContext, owning

from headrace.groups.classic.states import GroupState
from headrace.groups.configs import MigrationPolicy, NewerGroupSettings
from headrace.groups.consumer_subscription import assignment
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupKind, TopicFacts
from headrace.groups.turn import Room


@pytest.fixture
def ctx() -> MixedContext:
    return MixedContext()


def test_a_consumer_joins_a_classic_group(ctx: MixedContext) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    generation = ctx.group.generation
    joined = ctx.enter("C")
    assert joined.error is None
    assert joined.member_epoch == generation + 1
    assert ctx.has("C") == [], "the classic member reads all of it"
    assert ctx.whole.kind is GroupKind.CONSUMER
    assert ctx.error_of(old, generation) is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.rejoin(old) == [0, 1], "an eager member has revoked everything before it joins"
    ctx.settle("C")
    assert ctx.has("C") == [2, 3]
    assert ctx.error_of(old, generation + 1) is None
    assert {each.member_id: each.is_classic for each in ctx.described.members} == {old: True, "C": False}


def test_the_group_becomes_classic_when_the_last_consumer_leaves(ctx: MixedContext) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    ctx.enter("C")
    ctx.rejoin(old)
    ctx.settle("C")
    epoch = ctx.described.epoch
    ctx.beat("C", epoch=-1)
    assert ctx.whole.kind is GroupKind.CLASSIC
    assert ctx.group.state is GroupState.PREPARING_REBALANCE
    assert ctx.stored.fields == ()
    assert ctx.error_of(old, epoch) is GroupError.REBALANCE_IN_PROGRESS, "it knows this epoch as its generation"
    assert [*ctx.commit(old, epoch).result.partitions.values()] == [None], "it commits what it gives up"
    joined = ctx.join(old, protocols=EAGER).result
    assert (joined.error, joined.leader) == (None, old)


@pytest.mark.parametrize("back", [False, True])
def test_a_restart_keeps_members_of_both_kinds(ctx: MixedContext, back: bool) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    ctx.enter("C")
    if back:
        ctx.beat("C", epoch=-1)
    else:
        ctx.rejoin(old)
        ctx.settle("C")
    generation = ctx.group.generation if back else ctx.epochs["C"]
    ctx.restart()
    assert ctx.whole.kind is (GroupKind.CLASSIC if back else GroupKind.CONSUMER)
    assert ctx.error_of(old, generation) is (GroupError.REBALANCE_IN_PROGRESS if back else None)
    assert not back or not ctx.join(old, protocols=EAGER).result.error


def test_a_static_member_changes_its_protocol(ctx: MixedContext) -> None:
    joined = ctx.join(instance="i", protocols=EAGER)
    ctx.sleep(100)
    member = joined.result.member_id
    ctx.sync(member, assignments={member: assignment({"flights": [0, 1, 2, 3]})}, instance="i")
    ctx.enter("C", instance="i")
    ctx.settle("C")
    assert ctx.has("C") == [0, 1, 2, 3]
    again = ctx.join(instance="i", protocols=EAGER).result
    assert again.error is None
    assert ctx.whole.kind is GroupKind.CLASSIC, "no consumer is left"


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        (MigrationPolicy.DISABLED, False, False),
        (MigrationPolicy.UPGRADE, True, False),
        (MigrationPolicy.DOWNGRADE, False, True),
    ],
)
def test_the_policy_is_obeyed(policy: MigrationPolicy, up: bool, down: bool) -> None:
    ctx = MixedContext(NewerGroupSettings(consumer_migration_policy=policy))
    ctx.classic({"a": [0]})
    assert ctx.enter("C").error is (None if up else GroupError.GROUP_ID_NOT_FOUND)
    ctx = MixedContext(NewerGroupSettings(consumer_migration_policy=policy))
    ctx.enter("C")
    joined = ctx.join(protocols=EAGER).result
    assert joined.error is (GroupError.INCONSISTENT_GROUP_PROTOCOL if policy is MigrationPolicy.DISABLED else None)
    ctx.beat("C", epoch=-1)
    assert (ctx.whole.kind is GroupKind.CLASSIC) is down or joined.error is not None


def test_other_protocols_stay_classic(ctx: MixedContext) -> None:
    ctx.stable(1)
    assert ctx.enter("C").error is GroupError.GROUP_ID_NOT_FOUND, "assignments are unreadable"
    other = MixedContext()
    joined = other.join(version=3, protocol_type="connect", protocols=(("default", b""),))
    other.sleep(100)
    other.sync(joined.result.member_id, protocol_type="connect", protocol="default")
    assert other.enter("C").error is GroupError.GROUP_ID_NOT_FOUND
    mixed = MixedContext()
    mixed.enter("C")
    refused = GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join(protocol_type="connect", protocols=(("default", b""),)).result.error is refused
    assert mixed.join(protocols=(("range", b"x"),)).result.error is refused


def test_a_rebalancing_group_or_an_unknown_topic_makes_the_consumer_wait(ctx: MixedContext) -> None:
    ctx.join(version=3, protocols=EAGER)
    assert ctx.enter("C").error is GroupError.COORDINATOR_NOT_AVAILABLE
    other = MixedContext()
    other.classic({"a": [0]})
    del other.facts["flights"]
    assert other.enter("C").error is GroupError.COORDINATOR_NOT_AVAILABLE
    other.facts["flights"] = TopicFacts(FLIGHTS, 4)
    assert other.enter("C").error is None


def test_two_owners_of_a_partition_by_a_faulty_assignor(ctx: MixedContext) -> None:
    one, two = ctx.classic({"a": [0, 1], "b": [1, 2, 9]})
    generation = ctx.group.generation
    ctx.enter("C")
    errors = {ctx.error_of(member, generation) for member in (one, two)}
    assert errors == {GroupError.REBALANCE_IN_PROGRESS, GroupError.UNKNOWN_MEMBER_ID}


def test_a_cooperative_member_keeps_what_it_may_still_read(ctx: MixedContext) -> None:
    # Its leader has taken 1 away for the next generation.
    one, two = ctx.classic({"a": [0], "b": [2, 3]}, owning(0, 1))
    ctx.enter("C")
    assert ctx.has("C") == []
    assert {each.member_id: each.assigned[0].partitions for each in ctx.described.members if each.assigned} == {
        one: (0, 1),
        two: (2, 3),
    }


def test_a_consumer_that_is_refused_leaves_the_classic_group_as_it_was(ctx: MixedContext) -> None:
    """It asks again and again: members must not rebalance each time."""
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    generation = ctx.group.generation
    ctx.room = Room(members=100, offsets=1 << 20)
    assert ctx.refused(ctx.enter("C")) is GroupError.GROUP_MAX_SIZE_REACHED
    assert (ctx.whole.kind, ctx.group.state) == (GroupKind.CLASSIC, GroupState.STABLE)
    assert ctx.error_of(old, generation) is None
