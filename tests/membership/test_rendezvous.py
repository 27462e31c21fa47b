"""Who owns what: the same for everybody, even, and moved only where it has to be."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.membership.rendezvous import Rendezvous

KEYS = [f"headrace:flights:{partition}@0123456789ab" for partition in range(2_000)]
nodes = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=12)


@given(nodes, st.integers(0, 2**31 - 1))
def test_a_node_that_comes_or_goes_moves_only_what_becomes_or_was_its(present: set[int], other: int) -> None:
    few, many = Rendezvous(present - {other}), Rendezvous(present | {other})
    for key in KEYS[:100]:
        before, after = few.choose(key), many.choose(key)
        assert after in (before, other)


def test_everybody_gets_a_fair_share() -> None:
    shares = Counter(Rendezvous([1, 2, 3, 4]).choose(key) for key in KEYS)
    assert set(shares) == {1, 2, 3, 4}
    assert all(420 <= share <= 580 for share in shares.values()), shares


def test_nobody_owns_anything_where_there_is_nobody() -> None:
    assert Rendezvous([]).choose("anything") is None
    assert Rendezvous([7]).choose("anything") == 7


def test_the_choice_never_changes_between_releases() -> None:
    chosen = [Rendezvous([1, 2, 3]).choose(f"headrace:flights:{partition}") for partition in range(12)]
    assert chosen == EXPECTED


EXPECTED = [3, 2, 3, 1, 1, 2, 3, 3, 3, 1, 1, 3]
