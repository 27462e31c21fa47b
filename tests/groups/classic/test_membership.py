"""What the members of a generation agree on: its leader and its protocol."""

import pytest
from tests.harness.groups import REBALANCE_MS, GroupContext


# what a generation is made of
def test_only_the_leader_gets_the_members_with_their_metadata(ctx: GroupContext) -> None:
    joins = [ctx.join(version=3, protocols=(("a", b"a%d" % i), ("b", b"b%d" % i))) for i in range(3)]
    ctx.sleep(200)
    leader = joins[0].result

    assert leader.protocol == "a"
    assert [(each.member_id, each.metadata) for each in leader.members] == [
        (join.result.member_id, b"a%d" % i) for i, join in enumerate(joins)
    ]
    assert [join.result.members for join in joins[1:]] == [(), ()]
    assert {join.result.protocol_type for join in joins} == {"consumer"}


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["ab", "ab", "ba"], "a"),
        (["ab", "ba", "ba"], "b"),
        (["ab", "ba"], "a"),
        (["ba", "ab"], "b"),
        (["abc", "cb", "cba"], "c"),
        (["ab", "ab", "b"], "b"),
    ],
)
def test_members_vote_among_the_protocols_that_all_of_them_have(
    ctx: GroupContext, preferences: list[str], chosen: str
) -> None:
    joins = [ctx.join(version=3, protocols=tuple((name, b"") for name in names)) for names in preferences]
    ctx.sleep(500)

    assert {join.result.protocol for join in joins} == {chosen}


def test_a_leader_that_rejoins_keeps_leading(ctx: GroupContext) -> None:
    leader, other = ctx.stable(2)
    ctx.join(version=3)
    ctx.join(other)

    assert ctx.join(leader).result.leader == leader


def test_another_member_leads_when_the_leader_does_not_rejoin(ctx: GroupContext) -> None:
    leader, other = ctx.stable(2)
    ctx.leave(leader)

    assert ctx.join(other).result.leader == other


def test_a_static_leader_that_does_not_rejoin_is_kept_but_leads_no_more(ctx: GroupContext) -> None:
    leader, other = ctx.form(ctx.join(instance="i", session_ms=100_000), ctx.join(version=3))
    rejoin = ctx.join(other, protocols=(("range", b"new"),))
    ctx.sleep(REBALANCE_MS)

    assert rejoin.result.leader == other
    assert {member.member_id for member in rejoin.result.members} == {leader, other}
