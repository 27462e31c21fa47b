"""What tools see of a group, in each of its states."""

from tests.harness.groups import GroupContext, subscription

from headrace.groups.classic.states import GroupState


# what tools see
def test_a_stable_group_is_described_with_metadata_and_assignments(ctx: GroupContext) -> None:
    leader, follower = ctx.stable(2)
    described = ctx.group.describe()

    assert (described.name, described.state, described.generation) == ("group", GroupState.STABLE, 1)
    assert (described.protocol_type, described.protocol, described.leader) == ("consumer", "range", leader)
    assert [each.member_id for each in described.members] == [leader, follower]
    assert described.members[1].assignment == follower.encode()
    assert described.members[1].metadata == subscription("flights")
    assert (described.members[1].client_id, described.members[1].client_host) == ("client", "/127.0.0.1")


def test_outside_stable_metadata_and_assignments_are_not_shown(ctx: GroupContext) -> None:
    leader, _ = ctx.stable(2)
    ctx.join(leader)
    described = ctx.group.describe()

    assert (described.state, described.protocol) == (GroupState.PREPARING_REBALANCE, "")
    assert {(each.metadata, each.assignment) for each in described.members} == {(b"", b"")}
