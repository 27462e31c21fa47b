"""Shares: within one, sticky, the same for the same question."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.instances.rebalance import quotas, share_out

NAMES = tuple("abcdefghij")


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[str], list[str | None], dict[int, str]]:
    """Members, the holder of each partition (perhaps none), and its next holder."""
    members = draw(st.permutations(NAMES).map(lambda names: list(names[: 1 + len(names) % 7])))
    members = members[: draw(st.integers(1, len(members)))]
    holders = draw(st.lists(st.none() | st.sampled_from(members), min_size=1, max_size=20))
    held = [index for index, holder in enumerate(holders) if holder is not None]
    intended = draw(st.dictionaries(st.sampled_from(held), st.sampled_from(members), max_size=8)) if held else {}
    return members, holders, {index: name for index, name in intended.items() if name != holders[index]}


@given(situations())
def test_shares_are_within_one_and_everything_is_given(
    situation: tuple[list[str], list[str | None], dict[int, str]],
) -> None:
    members, holders, intended = situation
    shall = share_out(members, holders, intended)

    assert len(shall) == len(holders)
    counts = [shall.count(name) for name in members]
    assert sum(counts) == len(holders)
    assert max(counts) - min(counts) <= 1


@given(situations())
def test_held_partitions_are_not_moved_while_they_could_stay(
    situation: tuple[list[str], list[str | None], dict[int, str]],
) -> None:
    """As few moves as quotas allow: a member below its quota keeps all that it holds, one above gives up the rest."""
    members, holders, intended = situation
    shall = share_out(members, holders, intended)
    due = quotas(members, holders, intended)

    for name in members:
        held = [index for index, holder in enumerate(holders) if holder == name]
        kept = [index for index in held if shall[index] == name]
        assert len(kept) == min(len(held), due[name])


@given(situations())
def test_what_was_settled_stays(situation: tuple[list[str], list[str | None], dict[int, str]]) -> None:
    members, holders, intended = situation
    shall = share_out(members, holders, intended)

    assert share_out(members, shall, {}) == shall


@given(situations())
def test_an_intention_stays_until_it_is_carried_out(
    situation: tuple[list[str], list[str | None], dict[int, str]],
) -> None:
    members, holders, intended = situation
    shall = share_out(members, holders, intended)
    moves = {index: name for index, name in enumerate(shall) if holders[index] is not None and name != holders[index]}
    granted: list[str | None] = [shall[index] if holder is None else holder for index, holder in enumerate(holders)]

    assert share_out(members, granted, moves) == shall


def test_a_surplus_member_is_due_nothing_and_moves_nothing() -> None:
    assert share_out(["a", "b", "c"], ["b", "a"], {}) == ["b", "a"]
    assert quotas(["c", "a", "b"], ["b", "a"], {}) == {"c": 0, "a": 1, "b": 1}


def test_one_more_goes_to_those_that_more_are_on_the_way_to() -> None:
    assert quotas(["a", "b", "c"], ["a"] * 5, {4: "c"}) == {"a": 2, "b": 1, "c": 2}
    assert quotas(["a", "b", "c"], ["a"] * 5, {}) == {"a": 2, "b": 2, "c": 1}


def test_free_partitions_go_to_the_instances_with_the_largest_deficit() -> None:
    assert share_out(["a", "b"], ["a", None, None, "a"], {}) == ["a", "b", "b", "a"]
    assert share_out(["a", "b", "c"], [None] * 4, {}) == ["a", "a", "b", "c"]


def test_partitions_with_waiters_are_given_up_first() -> None:
    assert share_out(["a", "b"], ["a", "a"], {0: "b"}) == ["b", "a"]
    assert share_out(["a", "b"], ["a", "a"], {}) == ["a", "b"]
