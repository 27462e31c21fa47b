from tests.harness.consumers import FLIGHTS, SAME, ConsumerContext

from headrace.groups.classic.states import GroupState
from headrace.groups.configs import GroupConfig
from headrace.groups.consumer_subscription import partitions_of, topics_of
from headrace.groups.consumers.description import TopicAssignment
from headrace.groups.model import GroupKind


def test_states(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    found = [ctx.part.state]
    ctx.enter("B")
    found.append(ctx.part.state)
    ctx.settle("A", "B")
    found.append(ctx.part.state)
    for each in "AB":
        ctx.beat(each, epoch=-1)
    found.append(ctx.part.state)
    assert found == ["Stable", "Reconciling", "Stable", "Empty"]
    assert ctx.whole.state_name == "Empty"


def test_a_group_whose_target_is_to_be_computed_is_assigning(ctx: ConsumerContext) -> None:
    ctx.configs.default = GroupConfig(consumer_assignment_interval_ms=1_000)
    ctx.enter("A")
    ctx.enter("B")
    assert (ctx.part.state, ctx.whole.state) == ("Assigning", GroupState.PREPARING_REBALANCE)


def test_members_are_shown_with_what_they_have_and_should_have(ctx: ConsumerContext) -> None:
    ctx.enter("A", instance="i")
    ctx.beat("A", owned=SAME)
    ctx.enter("B")
    ctx.beat("A")
    found = ctx.described
    a, b = found.members
    half, other = TopicAssignment("flights", FLIGHTS, (0, 1)), TopicAssignment("flights", FLIGHTS, (2, 3))
    assert (a.member_id, a.instance_id, a.epoch, a.topics) == ("A", "i", 2, ("flights",))
    assert (a.assigned, a.target) == ((half,), (half,))
    assert (b.epoch, b.assigned, b.target) == (3, (), (other,))
    assert (found.epoch, found.target_epoch, found.assignor) == (3, 3, "uniform")
    ctx.beat("A", owned=SAME)
    ctx.beat("B")
    assert ctx.described.members[1].assigned == (other,)


def test_readers_of_classic_groups_see_consumers(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    found = ctx.whole.describe()
    assert (found.kind, found.state, found.generation) == (GroupKind.CONSUMER, GroupState.STABLE, 2)
    assert (found.protocol_type, found.protocol) == ("consumer", "uniform")
    (member,) = found.members
    assert topics_of(member.metadata) == ["flights"]
    assert partitions_of(member.assignment) == {"flights": [0, 1, 2, 3]}
