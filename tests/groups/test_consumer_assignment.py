import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.member import assignment

from headrace.groups.consumer_assignment import partitions_of
from headrace.groups.model import TopicPartition

NAMES = st.text("abcü.-_", min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=3))
def test_what_a_leader_assigns(shares: dict[str, list[int]]) -> None:
    wanted = {TopicPartition(topic, number) for topic, numbers in shares.items() for number in numbers}
    assert partitions_of(assignment(shares)) == wanted
    assert partitions_of(assignment(shares)[:-4]) == wanted, "user data may be left out"


@pytest.mark.parametrize("length", range(len(assignment({"topic": [1, 2]})) - 4))
def test_an_assignment_that_ends_early_is_none(length: int) -> None:
    assert partitions_of(assignment({"topic": [1, 2]})[:length]) == frozenset()


@given(st.binary(max_size=60))
def test_any_bytes_are_taken(data: bytes) -> None:
    partitions_of(data)


def test_a_count_beyond_the_bytes_takes_no_memory() -> None:
    assert partitions_of(b"\0\0\0\0\0\1\0\1t\x7f\xff\xff\xff") == frozenset()
