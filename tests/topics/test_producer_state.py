"""Kafka's rule for idempotent producers (KIP-98)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.batch import SEQUENCES
from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence
from headrace.topics.producer_state import (
    REMEMBERED,
    ProducerStateEntry,
    SentBatch,
    first_refused,
    last_of,
    may_begin,
    refused_after,
)


def producer(*spans: int, epoch: int = 0, first: int = 0, base_offset: int = 0) -> ProducerStateEntry:
    """One that has sent batches of so many records, one after the other."""
    known = ProducerStateEntry(epoch)
    for span in spans:
        known.take(epoch, first, span, base_offset, 1_000)
        first, base_offset = (first + span) % SEQUENCES, base_offset + span
    return known


@pytest.mark.parametrize("first", [0, 1, 77, SEQUENCES - 1])
def test_one_of_whom_nothing_is_known_begins_anywhere(first: int) -> None:
    assert ProducerStateEntry(3).find(3, first, 2) == -1


def test_the_next_sequence_is_new() -> None:
    assert producer(3, 2).find(0, 5, 1) == -1


@pytest.mark.parametrize("first", [4, 6, 0, 7])
def test_another_one_is_out_of_order(first: int) -> None:
    with pytest.raises(OutOfOrderSequence, match="expected 5"):
        producer(3, 2).find(0, first, 1)


def test_the_last_five_batches_are_known_again() -> None:
    known = producer(*[2] * 7)
    assert [known.find(0, 2 * place, 2) for place in range(2, 7)] == [4, 6, 8, 10, 12]
    assert len(known.batches) == REMEMBERED
    for place in (0, 1):
        with pytest.raises(OutOfOrderSequence):
            known.find(0, 2 * place, 2)


def test_a_repeated_batch_has_the_same_length() -> None:
    known = producer(3, 2)
    for first, span in ((0, 2), (0, 4), (3, 1), (3, 3), (1, 2)):
        with pytest.raises(OutOfOrderSequence):
            known.find(0, first, span)


def test_sequences_wrap() -> None:
    known = producer(3, 3, first=SEQUENCES - 4)
    assert known.batches == (SentBatch(SEQUENCES - 1, 1, 3), SentBatch(SEQUENCES - 4, SEQUENCES - 2, 0))
    assert known.find(0, SEQUENCES - 1, 3) == 3
    assert known.find(0, 2, 1) == -1
    assert producer(4, first=SEQUENCES - 4).find(0, 0, 1) == -1


def test_a_new_epoch_begins_with_zero_and_forgets_the_one_before() -> None:
    known = producer(3, 2)
    with pytest.raises(OutOfOrderSequence, match="begins with sequence 0"):
        known.find(1, 5, 1)
    assert known.find(1, 0, 3) == -1
    known.take(1, 0, 3, 9, 2_000)
    assert known.batches == (SentBatch(0, 2, 9),)
    assert known.find(1, 0, 3) == 9
    assert (known.epoch, known.expected, known.last_use_ms) == (1, 3, 2_000)


def test_an_old_epoch_is_over() -> None:
    for first in (0, 5):
        with pytest.raises(InvalidProducerEpoch, match="epoch 1 is over, now 2"):
            producer(5, epoch=2).find(1, first, 1)


def test_finding_changes_nothing_and_a_copy_is_another_one() -> None:
    known = producer(3)
    copied = known.copy()
    assert copied == known
    for first in (0, 3, 9):
        try:
            known.find(0, first, 3)
        except OutOfOrderSequence:
            continue
    assert copied == known
    known.take(0, 3, 1, 3, 1_000)
    assert copied != known
    assert copied.expected == 3


@given(st.integers(0, SEQUENCES - 1), st.integers(1, 2**31 - 1))
def test_the_next_sequence_follows_the_last(first: int, span: int) -> None:
    known = producer(span, first=first)
    assert known.expected == (first + span) % SEQUENCES == (last_of(first, span) + 1) % SEQUENCES
    assert 0 <= last_of(first, span) < SEQUENCES


# What was refused for a moment


def test_of_one_epoch_the_lowest_sequence_counts_as_the_first_refused() -> None:
    assert first_refused(None, 0, 5) == (0, 5)
    assert first_refused((0, 5), 0, 8) == (0, 5)
    assert first_refused((0, 5), 0, 3) == (0, 3)
    assert first_refused((0, 1), 0, SEQUENCES - 2) == (0, SEQUENCES - 2), "the one before 0 is lower"
    assert first_refused((1, 5), 0, 3) == (1, 5)
    assert first_refused((0, 5), 1, 8) == (1, 8)


def test_what_is_left_of_a_refusal_when_a_batch_was_stored() -> None:
    for repeated in (False, True):
        assert refused_after(None, 0, 3, 2, repeated=repeated) is None
        assert refused_after((0, 9), 1, 0, 2, repeated=repeated) is None
        assert refused_after((1, 3), 0, 3, 2, repeated=repeated) == (1, 3)
        assert refused_after((0, 5), 0, 3, 2, repeated=repeated) == (0, 5), "it is still to come"
    assert refused_after((0, 3), 0, 3, 2, repeated=False) is None
    assert refused_after((0, 3), 0, 3, 2, repeated=True) == (0, 5), "those behind it are"


def test_a_producer_that_is_not_known_begins_with_what_was_refused_or_in_another_epoch() -> None:
    assert may_begin(None, 0, 7)
    assert may_begin((0, 3), 0, 3)
    assert may_begin((0, 3), 1, 0)
    assert not may_begin((0, 3), 0, 4)
    assert not may_begin((0, 3), 0, 2)
    assert not may_begin((1, 3), 0, 3)
