"""Every partition has a member, shares are even, and members keep what they have."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.sharing.assignor import Shares, assign

NOTHING: Shares = {}


def everyone(count: int, *topics: str) -> dict[str, frozenset[str]]:
    return {f"m{number:03}": frozenset(topics) for number in range(count)}


def places(shares: Shares) -> Counter[tuple[str, int]]:
    return Counter(
        (topic, index) for topics in shares.values() for topic, indexes in topics.items() for index in indexes
    )


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5), st.data())
def test_all_partitions_have_members_and_shares_are_even(
    count: int, partitions: int, others: int, data: st.DataObject
) -> None:
    """Whatever members had before."""
    sizes = {"a": partitions, "b": others}
    members = everyone(count, "a", "b", "unknown")
    had = data.draw(
        st.dictionaries(
            st.sampled_from(sorted([*members, "gone"])),
            st.dictionaries(st.sampled_from(["a", "b", "gone"]), st.lists(st.integers(0, 12), unique=True)),
        )
    )
    shares = assign(members, sizes, had)
    assert shares.keys() == members.keys()
    readers = places(shares)
    assert readers.keys() == {(topic, index) for topic, size in sizes.items() for index in range(size)}
    assert max(readers.values()) - min(readers.values()) <= 1
    sums = [sum(map(len, topics.values())) for topics in shares.values()]
    assert max(sums) - min(sums) <= 1
    if count < partitions + others:
        assert set(readers.values()) == {1}
    # What is even stays as it is.
    assert assign(members, sizes, shares) == shares


@given(st.integers(2, 9), st.integers(1, 9))
def test_few_move_when_one_joins(count: int, partitions: int) -> None:
    before = assign(everyone(count - 1, "a"), {"a": partitions}, NOTHING)
    after = assign(everyone(count, "a"), {"a": partitions}, before)
    kept = sum(len({*before[member].get("a", ())} & {*after[member].get("a", ())}) for member in before)
    least = partitions - partitions // count if count - 1 < partitions else count - 1
    assert kept >= min(least, sum(map(len, (topics.get("a", ()) for topics in before.values())))) - 1


def test_topics_of_some_members_are_theirs_alone() -> None:
    members = {"a": frozenset({"one"}), "b": frozenset({"one", "two"}), "c": frozenset[str]()}
    assert assign(members, {"one": 2, "two": 1}, NOTHING) == {
        "a": {"one": (0,)},
        "b": {"one": (1,), "two": (0,)},
        "c": {},
    }


@pytest.mark.parametrize("members", [0, 3])
def test_nothing_to_share(members: int) -> None:
    assert assign(everyone(members, "a"), {}, NOTHING) == {name: {} for name in everyone(members)}
