"""Leadership: the same on every broker, even, and moved only if necessary."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.membership.view import Rendezvous

KEYS = [f"headrace:flights:{partition}@0123456789ab" for partition in range(2_000)]
nodes = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@given(nodes, st.integers(0, 2**31 - 1))
def test_a_node_that_comes_or_goes_moves_only_what_becomes_or_was_its(present: set[int], other: int) -> None:
    few, many = Rendezvous(present - {other}), Rendezvous(present | {other})
    for key in KEYS[:100]:
        before, after = few.choose(key), many.choose(key)
        assert after in (before, other)


@given(st.lists(st.tuples(nodes, st.integers(0, 30)), min_size=1, max_size=6))
def test_what_is_kept_from_one_set_of_nodes_to_the_next_changes_no_choice(sets: list[tuple[set[int], int]]) -> None:
    """However many come and go at once, and whichever keys were asked for before."""
    kept = Rendezvous([1])
    for present, asked in sets:
        kept = Rendezvous(present, kept)
        fresh = Rendezvous(present)
        for key in KEYS[:asked]:
            assert kept.choose_again(key) == kept.choose_again(key) == fresh.choose(key) == kept.choose(key)


@given(st.lists(st.sets(st.integers(1, 5), max_size=5), max_size=8))
def test_the_same_few_nodes_that_come_and_go(sets: list[set[int]]) -> None:
    kept = Rendezvous([])
    for present in sets:
        kept, fresh = Rendezvous(present, kept), Rendezvous(present)
        assert [kept.choose_again(key) for key in KEYS[:20]] == [fresh.choose(key) for key in KEYS[:20]]


def test_all_members_get_a_fair_share() -> None:
    shares = Counter(Rendezvous([1, 2, 3, 4]).choose(key) for key in KEYS)
    assert set(shares) == {1, 2, 3, 4}
    assert all(420 <= share <= 580 for share in shares.values()), shares


def test_without_members_there_are_no_owners() -> None:
    assert Rendezvous([]).choose("anything") is None
    assert Rendezvous([7]).choose("anything") == 7


def test_the_choice_never_changes_between_releases() -> None:
    chosen = [Rendezvous([1, 2, 3]).choose(f"headrace:flights:{partition}") for partition in range(12)]
    assert chosen == EXPECTED


EXPECTED = [3, 2, 3, 1, 1, 2, 3, 3, 3, 1, 1, 3]


def test_the_ranking_says_who_takes_over() -> None:
    nodes = [1, 2, 3, 7, 9]
    for number in range(200):
        key = f"stream {number}"
        ranking = Rendezvous(nodes).ranking(key, 4)
        left = list(nodes)
        for node in ranking:
            assert Rendezvous(left).choose(key) == node
            left.remove(node)
        assert len(ranking) == 4
    assert Rendezvous([]).ranking("x", 3) == []
    assert Rendezvous([4]).ranking("x", 3) == [4]
