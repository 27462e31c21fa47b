import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.groups import subscription
from tests.harness.member import assignment

from headrace.groups.consumer_subscription import owned_partitions, partitions_of, subscribed_topics, topics_of


@given(st.lists(st.text(max_size=40), max_size=5))
def test_the_topics_of_a_subscription_are_read(topics: list[str]) -> None:
    assert topics_of(subscription(*topics)) == topics


@given(st.lists(st.text(max_size=10), max_size=3), st.binary(max_size=50))
def test_what_follows_the_topics_does_not_matter(topics: list[str], rest: bytes) -> None:
    head = subscription(*topics)[:-8]

    assert topics_of(head) == topics
    assert topics_of(head + rest) == topics


@given(st.lists(st.text(min_size=1, max_size=10), min_size=1, max_size=3), st.data())
def test_a_subscription_that_is_cut_off_is_none(topics: list[str], data: st.DataObject) -> None:
    head = subscription(*topics)[:-8]
    cut = data.draw(st.integers(0, len(head) - 1))

    assert topics_of(head[:cut]) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_topics_or_none(metadata: bytes) -> None:
    found = topics_of(metadata)

    assert found is None or all(isinstance(topic, str) for topic in found)


def test_a_null_or_negative_length_is_none() -> None:
    assert topics_of(b"\0\1\xff\xff\xff\xff") is None
    assert topics_of(b"\0\1\0\0\0\1\xff\xff") is None
    assert topics_of(b"\xff\xff\0\0\0\0") is None


def test_subscriptions_add_up_and_one_unreadable_spoils_them_all() -> None:
    assert subscribed_topics([subscription("a", "b"), subscription("b", "c")]) == frozenset("abc")
    assert subscribed_topics([subscription("a"), b"?"]) is None
    assert subscribed_topics([]) == frozenset()


def test_many_members_of_a_few_topics_are_not_any_topic() -> None:
    """Sticky assignors write each member's partitions after the names, so all differ."""
    names = [f"topic-{number}" for number in range(100)]
    said = [subscription(*names)[:-8] + owned.to_bytes(4, "big") for owned in range(2_000)]
    assert subscribed_topics(said) == frozenset(names)
    different = [subscription(f"own-{number}", *names[:10]) for number in range(2_000)]
    assert subscribed_topics(different) == frozenset([f"own-{number}" for number in range(2_000)] + names[:10])


def test_too_many_names_may_be_any_topic() -> None:
    names = [f"topic-{number}" for number in range(20_001)]
    assert subscribed_topics([subscription(*names[:20_000])]) == frozenset(names[:20_000])
    assert subscribed_topics([subscription(*names)]) is None
    assert subscribed_topics([subscription(*names[:20_000]), subscription(names[-1])]) is None
    assert subscribed_topics([subscription(f"own-{number}", *names[:999]) for number in range(101)]) is None


NAMES = st.text("abcü.-_", min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=3))
def test_what_a_leader_assigns(shares: dict[str, list[int]]) -> None:
    assert partitions_of(assignment(shares)) == shares
    assert partitions_of(assignment(shares)[:-4]) == shares, "user data may be left out"


@pytest.mark.parametrize("length", range(len(assignment({"topic": [1, 2]})) - 4))
def test_an_assignment_that_ends_early_is_none(length: int) -> None:
    assert partitions_of(assignment({"topic": [1, 2]})[:length]) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_an_assignment_or_none(data: bytes) -> None:
    found = partitions_of(data)

    assert found is None or all(isinstance(topic, str) for topic in found)


def test_a_topic_that_is_named_twice_has_the_partitions_of_both() -> None:
    one, other = (assignment({"topic": [index]})[6:-4] for index in (1, 2))
    assert partitions_of(b"\0\0\0\0\0\2" + one + other) == {"topic": [1, 2]}


def test_a_count_beyond_the_bytes_takes_no_memory() -> None:
    assert partitions_of(b"\0\0\0\0\0\1\0\1t\x7f\xff\xff\xff") is None


@given(st.dictionaries(st.text(max_size=10), st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=3))
def test_what_a_cooperative_member_owns_is_read(owned: dict[str, list[int]]) -> None:
    metadata = subscription("flights")[:-4] + assignment(owned)[2:-4]
    assert owned_partitions(metadata) == owned
    assert owned_partitions(b"\0\0" + metadata[2:]) == {}


@given(st.binary(max_size=60))
def test_any_bytes_name_what_is_owned_or_nothing(metadata: bytes) -> None:
    assert isinstance(owned_partitions(metadata), dict)
    assert owned_partitions(subscription("flights")[:-4] + metadata) is not None
