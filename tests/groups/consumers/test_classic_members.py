"""Classic members in a consumer group."""

import pytest
from tests.harness.groups import subscription
from tests.harness.mixed_groups import EAGER, MixedContext, owning

from headrace.groups.consumer_subscription import assignment
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupKind


@pytest.fixture
def ctx() -> MixedContext:
    return MixedContext()


def test_a_cooperative_member_joins_twice(ctx: MixedContext) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]}, owning())
    ctx.enter("C")
    assert ctx.rejoin(old, owning(0, 1, 2, 3)) == [0, 1]
    ctx.beat("C")
    assert ctx.has("C") == [], "it has not revoked them yet"
    assert ctx.error_of(old, ctx.epochs["C"] - 1) is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.rejoin(old, owning(0, 1)) == [0, 1]
    ctx.settle("C")
    assert ctx.has("C") == [2, 3]


def test_a_classic_member_that_does_not_join_in_time_is_removed(ctx: MixedContext) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    generation = ctx.group.generation
    ctx.enter("C")
    for _ in range(13):
        ctx.error_of(old, generation)
        ctx.sleep(5_000)
        ctx.beat("C", owned=tuple(ctx.has("C")))
    assert ctx.error_of(old, generation) is GroupError.UNKNOWN_MEMBER_ID
    ctx.settle("C")
    assert ctx.has("C") == [0, 1, 2, 3]


def test_a_classic_member_joins_a_consumer_group(ctx: MixedContext) -> None:
    ctx.enter("C")
    ctx.settle("C")
    joined = ctx.join(protocols=EAGER).result
    assert joined.error is None
    assert ctx.sync(joined.member_id, joined.generation, protocol="range").result.assignment == assignment({})
    ctx.settle("C")
    assert ctx.has("C") == [0, 1]
    assert ctx.error_of(joined.member_id, joined.generation) is GroupError.REBALANCE_IN_PROGRESS
    assert ctx.rejoin(joined.member_id) == [2, 3]
    ctx.leave(joined.member_id)
    ctx.settle("C")
    assert ctx.has("C") == [0, 1, 2, 3]
    assert ctx.whole.kind is GroupKind.CONSUMER


def test_commits_of_classic_members(ctx: MixedContext) -> None:
    (old,) = ctx.classic({"a": [0, 1, 2, 3]})
    generation = ctx.group.generation
    ctx.enter("C")
    assert ctx.commit(old, generation).result.error is None
    ctx.rejoin(old)
    assert ctx.commit(old, generation).result.error is GroupError.ILLEGAL_GENERATION
    assert ctx.commit(old, generation + 1).result.error is None


def test_an_older_generation_and_unknown_members_are_rejected(ctx: MixedContext) -> None:
    ctx.enter("C")
    ctx.settle("C")
    joined = ctx.join(protocols=EAGER).result
    member, epoch = joined.member_id, joined.generation
    assert ctx.error_of(member, epoch - 1) is GroupError.ILLEGAL_GENERATION
    assert ctx.sync(member, epoch - 1).error is GroupError.ILLEGAL_GENERATION
    assert ctx.sync(member, epoch, protocol="sticky").error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert ctx.error_of("C", ctx.epochs["C"]) is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.join("x", protocols=EAGER).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.join("C", protocols=EAGER).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.leave("x").result.members[0].error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.beat(member, epoch=0, owned=(), topics=("flights",), timeout_ms=5).error is GroupError.UNKNOWN_MEMBER_ID
    assert ctx.leave("C").result.members[0].error is None


def test_a_silent_member_is_removed_after_its_session(ctx: MixedContext) -> None:
    ctx.enter("C")
    ctx.settle("C")
    joined = ctx.join(protocols=EAGER).result
    ctx.sync(joined.member_id, joined.generation, protocol="range")
    ctx.sleep(10_000)
    assert ctx.error_of(joined.member_id, joined.generation) is GroupError.UNKNOWN_MEMBER_ID


def test_classic_members_have_a_common_protocol(ctx: MixedContext) -> None:
    ctx.enter("C")
    both = (("sticky", subscription("flights")), *EAGER)
    assert ctx.join(protocols=both).result.protocol == "sticky"
    assert ctx.join(protocols=EAGER).result.protocol == "range"
    assert ctx.join(protocols=both[:1]).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_restarts(ctx: MixedContext) -> None:
    ctx.enter("C")
    first = ctx.join(instance="i", protocols=EAGER).result
    again = ctx.join(instance="i", protocols=EAGER).result
    assert again.member_id != first.member_id
    assert ctx.heartbeat(first.member_id, first.generation, instance="i").error is GroupError.FENCED_INSTANCE_ID
    assert ctx.heartbeat("x", 1, instance="j").error is GroupError.UNKNOWN_MEMBER_ID
    assert len(ctx.described.members) == 2
