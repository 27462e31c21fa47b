from uuid import UUID

import pytest

from headrace.groups.assignment.holdings import Holdings, MemberKey, Topic
from headrace.groups.consumers.events import ConsumerHeartbeat
from headrace.groups.consumers.member import Member, MemberState, as_assignment, owns_any, owns_only
from headrace.groups.model import StoredConsumer, StoredGrants, StoredPartitions

ID, OTHER = UUID(int=1), UUID(int=2)
FLIGHTS = Topic("flights", ID)
JOIN = ConsumerHeartbeat(
    token=1, member_id="A", member_epoch=0, rebalance_timeout_ms=5, client_id="c", client_host="h", connection=3
)


@pytest.fixture
def holdings() -> Holdings[MemberKey]:
    found: Holdings[MemberKey] = Holdings(5, 5)
    found.topic("flights", ID, 3)
    found.subscribe("A", {"flights"})
    found.aim({"A": {"flights": [0, 1, 2]}})
    found.grant("A", {FLIGHTS: {0, 2}}, 4)
    found.grant("A", {FLIGHTS: {1}}, 5)
    return found


def test_a_member_comes_back_as_it_was_stored(holdings: Holdings[MemberKey]) -> None:
    member = Member(JOIN)
    member.topics, member.pattern, member.assignor = ("flights",), "x.*", "range"
    member.renew(4, MemberState.STABLE)
    member.renew(5, MemberState.UNREVOKED)
    member.revoking = {FLIGHTS: {2}}
    stored = member.stored(holdings)
    assert stored == StoredConsumer(
        member_id="A",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=5,
        topics=("flights",),
        pattern="x.*",
        assignor="range",
        epoch=5,
        previous_epoch=4,
        state="UNREVOKED",
        held=(StoredGrants("flights", ID, {4: (0, 2), 5: (1,)}),),
        revoking=(StoredPartitions("flights", ID, (2,)),),
        target=(StoredPartitions("flights", ID, (0, 1, 2)),),
    )
    again = Member.restore(stored)
    assert again.stored(holdings) == stored
    # What is only in memory: a later connection is a new one.
    assert (again.connection, again.matched, again.size) == (0, None, member.charged())


def test_the_epoch_before_is_kept_at_every_new_state() -> None:
    member = Member(JOIN)
    for epoch in (3, 4, 4):
        member.renew(epoch, MemberState.UNRELEASED)
    assert (member.previous_epoch, member.epoch) == (4, 4)


def test_what_is_given_up_is_not_assigned(holdings: Holdings[MemberKey]) -> None:
    member = Member(JOIN)
    assert member.assigned(holdings) == {FLIGHTS: {0, 1, 2}}
    member.revoking = {FLIGHTS: {0}}
    assert member.assigned(holdings) == {FLIGHTS: {1, 2}}
    member.revoking = {FLIGHTS: {0, 1, 2}}
    assert member.assigned(holdings) == {}


def test_an_assignment_is_sorted() -> None:
    parts = {Topic("trains", OTHER): {1}, FLIGHTS: {2, 0}}
    assert as_assignment(parts) == ((ID, (0, 2)), (OTHER, (1,)))


@pytest.mark.parametrize(
    ("owned", "has_any", "only"),
    [
        ((), False, True),
        (((ID, (0,)),), True, True),
        (((ID, (0, 2)),), True, False),
        (((ID, (2,)),), False, False),
        (((OTHER, (0,)),), False, False),
        (((OTHER, ()),), False, True),
    ],
)
def test_what_a_member_owns(owned: tuple[tuple[UUID, tuple[int, ...]], ...], has_any: bool, only: bool) -> None:
    parts = {FLIGHTS: {0, 1}}
    assert (owns_any(owned, parts), owns_only(owned, parts)) == (has_any, only)


def test_data_is_charged() -> None:
    small, large = Member(JOIN), Member(JOIN)
    large.topics, large.matched = ("a" * 100,), frozenset({"b", "c"})
    assert large.charged() - small.charged() >= 300
    assert large.subscription == {"a" * 100, "b", "c"}
