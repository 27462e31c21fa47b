from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.assignment.assignors import Assignment, range_assignor, uniform

T = frozenset({"t"})
Owners = dict[str, dict[int, str]]


def owners_of(assignment: Assignment[str]) -> Owners:
    found: Owners = {}
    for who, topics in assignment.items():
        for topic, partitions in topics.items():
            for partition in partitions:
                assert partition not in found.setdefault(topic, {}), "two members have it"
                found[topic][partition] = who
    return found


def sizes(assignment: Assignment[str]) -> dict[str, int]:
    return {who: sum(map(len, topics.values())) for who, topics in assignment.items()}


def moved(before: Owners, after: Owners) -> int:
    return sum(after[topic][each] != who for topic, owners in before.items() for each, who in owners.items())


def joined(count: int) -> dict[str, frozenset[str]]:
    return {f"m{number}": T for number in range(count)}


names = st.sampled_from([f"m{number}" for number in range(8)])


@st.composite
def groups(draw: st.DrawFn, topics: tuple[str, ...] = ("t", "u")) -> tuple[dict[str, int], Owners, Owners]:
    """Partitions, owners and intended ones; owners may have left."""
    partitions = {topic: draw(st.integers(0, 12)) for topic in topics}

    def owners() -> Owners:
        return {topic: draw(st.dictionaries(st.integers(0, 14), names)) for topic in topics}

    return partitions, owners(), owners()


def same_topics(members: list[str]) -> dict[str, frozenset[str]]:
    return dict.fromkeys(members, frozenset({"t", "u"}))


member_lists = st.lists(names, unique=True, min_size=1)


@given(groups(), member_lists)
def test_uniform_assigns_everything_in_equal_shares(
    group: tuple[dict[str, int], Owners, Owners], members: list[str]
) -> None:
    partitions, held, intended = group
    assignment = uniform(same_topics(members), partitions, held, intended)
    found = owners_of(assignment)
    assert {topic: len(found.get(topic, {})) for topic in partitions} == partitions
    assert max(sizes(assignment).values()) - min(sizes(assignment).values()) <= 1
    assert list(assignment) == members
    assert all(each == sorted(each) for topics in assignment.values() for each in topics.values())


@given(groups(), member_lists)
def test_uniform_is_deterministic(group: tuple[dict[str, int], Owners, Owners], members: list[str]) -> None:
    partitions, held, intended = group
    expected = uniform(same_topics(members), partitions, held, intended)
    backwards = {topic: dict(reversed(owners.items())) for topic, owners in reversed(held.items())}
    again = uniform(same_topics(members), dict(reversed(partitions.items())), backwards, intended)
    assert again == expected


@given(groups(), member_lists)
def test_uniform_moves_as_few_as_equal_shares_allow(
    group: tuple[dict[str, int], Owners, Owners], members: list[str]
) -> None:
    partitions, held, _ = group
    held = {topic: {p: who for p, who in held[topic].items() if p < partitions[topic]} for topic in partitions}
    held = {topic: {p: who for p, who in owners.items() if who in members} for topic, owners in held.items()}
    after = owners_of(uniform(same_topics(members), partitions, held, {}))
    counts = sorted(Counter(who for owners in held.values() for who in owners.values())[who] for who in members)[::-1]
    least, rest = divmod(sum(partitions.values()), len(members))
    kept = sum(min(count, least + (rank < rest)) for rank, count in enumerate(counts))
    assert moved(held, after) == sum(counts) - kept


@given(st.integers(0, 30), st.data(), member_lists)
def test_uniform_keeps_the_lowest(count: int, data: st.DataObject, members: list[str]) -> None:
    held = data.draw(st.dictionaries(st.integers(0, max(count - 1, 0)), st.sampled_from(members), max_size=count))
    assignment = uniform(dict.fromkeys(members, T), {"t": count}, {"t": held}, {})
    for who, topics in assignment.items():
        mine = sorted(each for each, owner in held.items() if owner == who and each < count)
        kept = [each for each in mine if each in topics.get("t", [])]
        assert kept == mine[: len(kept)]


# One topic, as in a section of instances.


def shares(members: list[str], holders: list[str | None], intended: dict[int, str]) -> list[str]:
    """Members by partition, given the holder of each partition, and its next holder."""
    held = {index: holder for index, holder in enumerate(holders) if holder is not None}
    found = owners_of(uniform(dict.fromkeys(members, T), {"t": len(holders)}, {"t": held}, {"t": intended}))
    return [found["t"][index] for index in range(len(holders))]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[str], list[str | None], dict[int, str]]:
    """Members, the holder of each partition (perhaps none), and its next holder."""
    members = draw(member_lists)
    holders = draw(st.lists(st.none() | st.sampled_from(members), min_size=1, max_size=20))
    held = [index for index, holder in enumerate(holders) if holder is not None]
    intended = draw(st.dictionaries(st.sampled_from(held), st.sampled_from(members), max_size=8)) if held else {}
    return members, holders, {index: name for index, name in intended.items() if name != holders[index]}


@given(situations())
def test_what_was_settled_stays(situation: tuple[list[str], list[str | None], dict[int, str]]) -> None:
    members, holders, intended = situation
    shall = shares(members, holders, intended)
    assert shares(members, [*shall], {}) == shall


@given(situations())
def test_an_intention_stays_until_it_is_carried_out(
    situation: tuple[list[str], list[str | None], dict[int, str]],
) -> None:
    members, holders, intended = situation
    shall = shares(members, holders, intended)
    moves = {index: name for index, name in enumerate(shall) if holders[index] is not None and name != holders[index]}
    granted: list[str | None] = [shall[index] if holder is None else holder for index, holder in enumerate(holders)]
    assert shares(members, granted, moves) == shall


def test_a_surplus_member_gets_nothing_and_moves_nothing() -> None:
    assert shares(["a", "b", "c"], ["b", "a"], {}) == ["b", "a"]


def test_one_more_goes_to_those_that_more_are_on_the_way_to() -> None:
    assert Counter(shares(["a", "b", "c"], ["a"] * 5, {4: "c"})) == {"a": 2, "b": 1, "c": 2}
    assert Counter(shares(["a", "b", "c"], ["a"] * 5, {})) == {"a": 2, "b": 2, "c": 1}


def test_free_partitions_go_to_the_members_with_the_largest_deficit() -> None:
    assert shares(["a", "b"], ["a", None, None, "a"], {}) == ["a", "b", "b", "a"]
    assert shares(["a", "b", "c"], [None] * 4, {}) == ["a", "a", "b", "c"]


def test_partitions_with_waiters_are_given_up_first() -> None:
    assert shares(["a", "b"], ["a", "a"], {0: "b"}) == ["b", "a"]
    assert shares(["a", "b"], ["a", "a"], {}) == ["a", "b"]


def test_uniform_gives_a_third_member_the_highest_of_both() -> None:
    # librdkafka's 0113 checks this result.
    held = {"t": {0: "m0", 1: "m0", 2: "m0", 3: "m1", 4: "m1", 5: "m1"}}
    assignment = uniform(joined(3), {"t": 6}, held, held)
    assert assignment == {"m0": {"t": [0, 1]}, "m1": {"t": [3, 4]}, "m2": {"t": [2, 5]}}


def test_uniform_takes_free_partitions_before_held_ones() -> None:
    # m1 gets the free one; m2 waits for what m0 gives up.
    assignment = uniform(joined(3), {"t": 3}, {"t": {0: "m0", 1: "m0"}}, {})
    assert assignment == {"m0": {"t": [0]}, "m1": {"t": [2]}, "m2": {"t": [1]}}


def test_uniform_keeps_intentions_while_owners_revoke() -> None:
    # m1 waits for 3. Although 2 is a higher one of m0's kept partitions, it does not get 2 instead.
    held = {"t": dict.fromkeys(range(4), "m0")}
    intended = {"t": {0: "m0", 2: "m0", 1: "m1", 3: "m1"}}
    assert uniform(joined(2), {"t": 4}, held, intended) == {"m0": {"t": [0, 2]}, "m1": {"t": [1, 3]}}


def test_uniform_keeps_the_same_partitions_of_topics_together() -> None:
    held = {topic: dict.fromkeys(range(2), "m0") for topic in ("t", "u")}
    assignment = uniform(same_topics(["m0", "m1"]), {"t": 2, "u": 2}, held, held)
    assert assignment == {"m0": {"t": [0], "u": [0]}, "m1": {"t": [1], "u": [1]}}


def test_uniform_ignores_unknown_topics() -> None:
    members = {"m0": frozenset({"t", "x"}), "m1": frozenset({"t"}), "m2": frozenset({"t", "y"})}
    assert uniform(members, {"t": 2}, {}, {}) == {"m0": {"t": [0]}, "m1": {"t": [1]}, "m2": {}}


def test_uniform_of_nothing() -> None:
    assert uniform({}, {"t": 3}, {}, {}) == {}
    assert uniform(joined(2), {}, {"t": {0: "m0"}}, {}) == {"m0": {}, "m1": {}}


TOPICS = ("a", "b", "c")
subscriptions = st.dictionaries(names, st.frozensets(st.sampled_from(TOPICS)), min_size=1)


@given(groups(TOPICS), subscriptions)
def test_uniform_of_different_topics_assigns_to_subscribers(
    group: tuple[dict[str, int], Owners, Owners], members: dict[str, frozenset[str]]
) -> None:
    partitions, held, intended = group
    assignment = uniform(members, partitions, held, intended)
    found = owners_of(assignment)
    for topic, count in partitions.items():
        wanted = any(topic in topics for topics in members.values())
        assert len(found.get(topic, {})) == (count if wanted else 0)
    assert all(topics.keys() <= members[who] for who, topics in assignment.items())
    assert uniform(members, partitions, held, intended) == assignment


@given(groups(TOPICS), subscriptions)
def test_uniform_of_different_topics_leaves_no_move_that_narrows(
    group: tuple[dict[str, int], Owners, Owners], members: dict[str, frozenset[str]]
) -> None:
    partitions, held, intended = group
    assignment = uniform(members, partitions, held, intended)
    loads = sizes(assignment)
    for who, topics in assignment.items():
        for topic in topics:
            least = min(loads[other] for other, wanted in members.items() if topic in wanted)
            assert loads[who] - least <= 1


@given(groups(TOPICS), subscriptions)
def test_uniform_is_stable(group: tuple[dict[str, int], Owners, Owners], members: dict[str, frozenset[str]]) -> None:
    partitions, held, intended = group
    first = owners_of(uniform(members, partitions, held, intended))
    assert owners_of(uniform(members, partitions, first, first)) == first


@given(groups(TOPICS), subscriptions, names)
def test_uniform_moves_only_to_a_member_that_joins(
    group: tuple[dict[str, int], Owners, Owners], members: dict[str, frozenset[str]], new: str
) -> None:
    partitions, held, intended = group
    members = {who: frozenset(TOPICS) for who in members if who != new}
    before = owners_of(uniform(members, partitions, held, intended))
    after = owners_of(uniform({**members, new: frozenset(TOPICS)}, partitions, before, before))
    for topic, owners in before.items():
        assert all(after[topic][each] in {who, new} for each, who in owners.items())


def test_range_is_contiguous_in_the_order_of_members() -> None:
    members = {"b": frozenset({"t", "u"}), "c": frozenset({"t"}), "a": frozenset({"t", "u"})}
    assert range_assignor(members, {"t": 7, "u": 3}) == {
        "a": {"t": [0, 1, 2], "u": [0, 1]},
        "b": {"t": [3, 4], "u": [2]},
        "c": {"t": [5, 6]},
    }


def test_range_orders_static_members_by_instance() -> None:
    assignment = range_assignor(joined(3), {"t": 3}, {"m2": "i1", "m1": "i2"})
    assert assignment == {"m2": {"t": [0]}, "m1": {"t": [1]}, "m0": {"t": [2]}}


def test_range_leaves_members_without_partitions() -> None:
    members: Mapping[str, frozenset[str]] = {**joined(2), "m2": frozenset({"x"})}
    assert range_assignor(members, {"t": 1}) == {"m0": {"t": [0]}, "m1": {}, "m2": {}}
    assert range_assignor({}, {"t": 1}) == {}


@given(groups(TOPICS), subscriptions)
def test_range_assigns_everything(
    group: tuple[dict[str, int], Owners, Owners], members: dict[str, frozenset[str]]
) -> None:
    partitions = group[0]
    found = owners_of(range_assignor(members, partitions))
    for topic, count in partitions.items():
        wanted = any(topic in topics for topics in members.values())
        assert sorted(found.get(topic, {})) == list(range(count if wanted else 0))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
def test_range_of_equal_topics_is_the_same(count: int) -> None:
    assignment = range_assignor(same_topics(["m0", "m1", "m2"]), {"t": count, "u": count})
    assert all(topics.get("t") == topics.get("u") for topics in assignment.values())
