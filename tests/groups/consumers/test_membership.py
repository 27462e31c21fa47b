import msgspec
from tests.harness.consumers import SAME, ConsumerContext

from headrace.groups.consumers.member import Member
from headrace.groups.consumers.membership import Membership
from headrace.groups.model import DropField, GroupHeader, GroupKind, SaveField, StoredConsumer
from headrace.machines.effects import Persist

HEADER = GroupHeader(
    generation=7,
    protocol_type=None,
    protocol=None,
    leader=None,
    empty_since_ms=None,
    kind=GroupKind.CONSUMER,
    epoch=7,
    target_epoch=7,
)


def stored(ctx: ConsumerContext) -> list[StoredConsumer]:
    """Members in storage."""
    return sorted(
        (each for each in ctx.stored.fields if isinstance(each, StoredConsumer)), key=lambda each: each.member_id
    )


def saved(ctx: ConsumerContext) -> list[str]:
    """Members that the last event stored."""
    changes = [change for effect in ctx.effects if isinstance(effect, Persist) for change in effect.changes]
    return [
        change.value.member_id
        for change in changes
        if isinstance(change, SaveField) and isinstance(change.value, StoredConsumer)
    ]


def test_only_changed_members_are_stored(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    ctx.enter("B", topics=("trains",))
    assert saved(ctx) == ["B"]
    ctx.beat("A", owned=SAME)
    ctx.enter("C")
    # A has another target. B has not.
    assert saved(ctx) == ["A", "C"]
    ctx.beat("A")
    assert saved(ctx) == ["A"]


def test_members_that_contradict_each_other_join_again(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    (only,) = stored(ctx)
    group = Membership("g", 7, 7)
    group.restore(HEADER, [only, msgspec.structs.replace(only, member_id="B")])
    assert list(group.members) == list(group.holdings.members) == ["A"]
    assert DropField("consumer:B") in group.take_changes()


def test_a_member_that_joins_again_stays_stored(ctx: ConsumerContext) -> None:
    """The removal of what storage had of it must not follow its new state."""
    ctx.enter("A")
    (only,) = stored(ctx)
    group = Membership("g", 7, 7)
    again = msgspec.structs.replace(only, member_id="B")
    group.restore(HEADER, [only, again])
    member = Member.restore(again)
    group.add(member)
    group.holdings.subscribe("B", member.subscription)
    changes = group.take_changes()
    assert DropField("consumer:B") not in changes
    assert [each.value.field for each in changes if isinstance(each, SaveField)] == ["consumer:B"]


def test_an_unknown_state_is_no_member(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    (only,) = stored(ctx)
    group = Membership("g", 7, 7)
    group.restore(HEADER, [msgspec.structs.replace(only, state="LATER")])
    assert len(group) == 0


def test_the_first_assignor_wins_a_tie(ctx: ConsumerContext) -> None:
    ctx.enter("A", assignor="range")
    assert ctx.described.assignor == "range"
    ctx.enter("B", assignor="uniform")
    assert ctx.described.assignor == "uniform"
    ctx.beat("B", epoch=-1)
    assert ctx.described.assignor == "range"


def test_who_came_and_went(ctx: ConsumerContext) -> None:
    ctx.enter("A", instance="i")
    ctx.enter("B")
    came, went = ctx.part.take_moved()
    assert (list(came), list(went)) == (["A", "B"], [])
    assert came["A"].client_id == "client"
    ctx.beat("A", epoch=-2, instance="i")
    ctx.enter("C", instance="i")
    ctx.beat("B", epoch=-1)
    ctx.enter("D")
    ctx.beat("D", epoch=-1)
    came, went = ctx.part.take_moved()
    assert (list(came), list(went)) == (["C"], ["A", "B"])
    assert ctx.part.take_moved() == ({}, {})


def test_bytes_come_and_go(ctx: ConsumerContext) -> None:
    ctx.enter("A")
    one = ctx.part.member_bytes
    ctx.enter("B", topics=("trains",))
    two = ctx.part.member_bytes
    assert 0 < one < two
    ctx.beat("B", epoch=-1)
    assert ctx.part.member_bytes == one
    ctx.beat("A", epoch=-1)
    assert ctx.whole.member_bytes == 0
