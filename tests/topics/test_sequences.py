"""Checklist E.5, idempotence."""

import pytest

from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence
from headrace.topics.sequences import Producer, SentBatch, find_duplicate, last_of, remember

LAST = 2**31 - 1


def after(*spans: int, epoch: int = 0, first: int = 0) -> Producer:
    """A producer that has appended batches of these spans, one after the other, from offset 100."""
    known = None
    base_offset = 100
    for span in spans:
        assert find_duplicate(known, epoch, first, span) is None
        known = remember(known, epoch, first, span, base_offset)
        first = last_of(first, span) + 1
        base_offset += span
    assert known is not None
    return known


@pytest.mark.parametrize("first", [0, 7, LAST])
def test_an_unknown_producer_may_begin_anywhere(first: int) -> None:
    assert find_duplicate(None, 3, first, 10) is None


def test_the_next_sequence_is_new() -> None:
    assert find_duplicate(after(10, 5), 0, 15, 3) is None


@pytest.mark.parametrize("first", [16, 14, 0, LAST])
def test_a_gap_or_a_step_back_is_out_of_order(first: int) -> None:
    with pytest.raises(OutOfOrderSequence, match=f"expected 15, found {first}"):
        find_duplicate(after(10, 5), 0, first, 3)


def test_each_of_the_last_five_gets_its_offset_again_and_the_sixth_does_not() -> None:
    known = after(1, 2, 3, 4, 5, 6)
    assert len(known.batches) == 5
    firsts = {1: (2, 101), 3: (3, 103), 6: (4, 106), 10: (5, 110), 15: (6, 115)}
    for first, (span, base_offset) in firsts.items():
        assert find_duplicate(known, 0, first, span) == SentBatch(first, first + span - 1, base_offset)
    with pytest.raises(OutOfOrderSequence):
        find_duplicate(known, 0, 0, 1)


def test_a_batch_that_repeats_only_part_of_one_is_out_of_order() -> None:
    with pytest.raises(OutOfOrderSequence):
        find_duplicate(after(10, 5), 0, 10, 4)
    with pytest.raises(OutOfOrderSequence):
        find_duplicate(after(10, 5), 0, 11, 4)


def test_sequences_wrap_between_batches_and_within_one() -> None:
    known = after(1, first=LAST)
    assert find_duplicate(known, 0, 0, 5) is None
    known = after(4, first=LAST - 1)
    assert known.batches[0] == SentBatch(LAST - 1, 1, 100)
    assert find_duplicate(known, 0, 2, 1) is None
    assert find_duplicate(known, 0, LAST - 1, 4) == known.batches[0]
    with pytest.raises(OutOfOrderSequence, match="expected 2, found 0"):
        find_duplicate(known, 0, 0, 1)


def test_a_higher_epoch_begins_with_0_and_forgets_what_was_before() -> None:
    known = after(10, 5, epoch=1)
    with pytest.raises(OutOfOrderSequence, match="begins with sequence 0, found 15"):
        find_duplicate(known, 2, 15, 1)
    assert find_duplicate(known, 2, 0, 10) is None
    assert remember(known, 2, 0, 10, 200) == Producer(2, (SentBatch(0, 9, 200),))


def test_a_lower_epoch_is_over_even_for_a_repeated_batch() -> None:
    with pytest.raises(InvalidProducerEpoch, match="epoch 0 is over, now 1"):
        find_duplicate(after(10, epoch=1), 0, 0, 10)
