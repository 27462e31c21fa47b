"""Transactional batches and markers at the assignment of offsets."""

import pytest

from headrace.records.markers import Marker
from headrace.topics.append import MOST_OFFSET, EndStep, OffsetAssigner
from headrace.topics.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OffsetsExhausted,
    OutOfOrderSequence,
    TransactionUnverified,
)
from headrace.topics.model import Append, Appended
from headrace.topics.producer_state import SentBatch
from headrace.topics.transactions import OpenTransaction, Transactions


def batch(span: int = 1, producer: int = -1, sequence: int = -1) -> Append:
    return Append(bytearray(b"any"), span, 5, producer, 0, sequence)


def transactional(sequence: int, span: int = 1, epoch: int = 0, producer: int = 7) -> Append:
    return Append(bytearray(b"any"), span, 5, producer, epoch, sequence, "id")


def end(epoch: int = 0, number: int = -1, *, commit: bool = True, producer: int = 7) -> Marker:
    return Marker(producer, epoch, commit, number)


def test_the_first_transactional_batch_opens_a_transaction_and_a_marker_ends_it() -> None:
    owner = OffsetAssigner(3)
    assert owner.must_verify(transactional(0))
    owner.assign(transactional(0, 2), 9, 4)
    assert not owner.must_verify(transactional(2))
    owner.assign(transactional(2), 10)
    assert owner.transactions.open[7] == OpenTransaction(7, 3, 0, 9, 4, "id")
    assert owner.check_end(end(number=4)) is EndStep.PLACE
    assert owner.assign_marker(end(number=4), 11) == 6
    assert (owner.next_offset, owner.producers[7].ended, owner.producers[7].last_use_ms) == (7, 4, 11)
    assert owner.must_verify(transactional(3)), "the next transaction"
    assert not owner.must_verify(transactional(2)), "a repeated batch"
    assert owner.assign(transactional(2), 12) == Appended(5, duplicate=True)
    assert not owner.transactions.open
    assert owner.assign(transactional(3), 13) == Appended(7)


def test_a_marker_with_a_higher_epoch_begins_its_sequences_at_zero() -> None:
    owner = OffsetAssigner(0)
    owner.assign(transactional(0, 3), 1)
    owner.assign_marker(end(1), 2)
    with pytest.raises(InvalidProducerEpoch):
        owner.assign(transactional(3), 3)
    with pytest.raises(OutOfOrderSequence):
        owner.assign(transactional(3, epoch=1), 3)
    copied = owner.producers[7].copy()
    assert (copied.epoch, copied.batches, copied.expected) == (1, (), 0)
    assert owner.assign(transactional(0, epoch=1), 3) == Appended(4)


def test_a_marker_in_the_same_epoch_keeps_the_sequences() -> None:
    owner = OffsetAssigner(0)
    owner.assign(transactional(0, 3), 1)
    owner.assign_marker(end(), 2)
    with pytest.raises(OutOfOrderSequence):
        owner.assign(transactional(0, 1), 3)
    assert owner.assign(transactional(3), 3) == Appended(4)


def test_a_plain_batch_and_one_of_another_epoch_do_not_fit_an_open_transaction() -> None:
    owner = OffsetAssigner(0)
    owner.assign(transactional(0), 1)
    for refused in (batch(1, 7, 1), transactional(0, epoch=1)):
        with pytest.raises(InvalidTransactionState):
            owner.assign(refused, 2)
    assert owner.producers[7].batches == (SentBatch(0, 0, 0),)
    assert owner.assign(batch(1, 8, 0), 2) == Appended(1), "another producer"
    assert owner.assign(transactional(1), 2) == Appended(2)


@pytest.mark.parametrize("survives", [False, True])
def test_a_repeated_end_does_not_end_the_next_transaction(survives: bool) -> None:
    """The transactions of a TV1 producer share an epoch, so only their numbers differ."""
    owner = OffsetAssigner(0)
    owner.assign(transactional(0), 1, 5)
    owner.assign_marker(end(number=5), 2)
    owner.assign(transactional(1), 3, 6)
    if survives:
        unstable = [each._replace(number=-1) for each in owner.transactions.open.values()]
        owner = OffsetAssigner(3, owner.producers, transactions=Transactions(unstable))
    assert owner.check_end(end(number=5)) is EndStep.REPEATED
    assert owner.check_end(end(number=6)) is EndStep.PLACE
    owner.assign_marker(end(number=6), 4)
    assert owner.check_end(end(number=6)) is owner.check_end(end(number=5)) is EndStep.REPEATED


def test_a_repeated_end_of_a_transaction_without_batches_is_older_than_the_open_one() -> None:
    owner = OffsetAssigner(0)
    assert owner.check_end(end(number=5)) is EndStep.NOTE
    owner.assign(transactional(0), 1, 6)
    assert owner.check_end(end(number=5)) is EndStep.REPEATED


@pytest.mark.parametrize("noted", [False, True])
def test_a_late_batch_of_an_ended_transaction_opens_none(noted: bool) -> None:
    """A coordinator that another one has replaced may still confirm it. Both transactions have the same epoch."""
    owner = OffsetAssigner(0)
    if noted:
        owner.note_end(end(number=5, commit=False), 2)
    else:
        owner.assign(transactional(0), 1, 5)
        owner.assign_marker(end(number=5, commit=False), 2)
    following, late = owner.next_offset, transactional(0 if noted else 1)
    for number in (5, 4):
        with pytest.raises(TransactionUnverified):
            owner.assign(late, 3, number)
    assert (owner.next_offset, dict(owner.transactions.open)) == (following, {})
    assert owner.assign(late, 4, 6) == Appended(following)
    assert owner.check_end(end(number=6)) is EndStep.PLACE


def test_a_noted_end_fences_the_epochs_below() -> None:
    owner = OffsetAssigner(0)
    owner.note_end(end(2, 5), 1)
    assert owner.unsaved
    with pytest.raises(InvalidProducerEpoch):
        owner.check_end(end(1, 6))
    assert owner.check_end(end(1, 5)) is EndStep.REPEATED
    with pytest.raises(InvalidProducerEpoch):
        owner.assign(transactional(0, epoch=1), 2)
    assert owner.assign(transactional(0, epoch=2), 2) == Appended(0)


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    owner = OffsetAssigner(0)
    owner.assign(transactional(0, epoch=3), 1)
    owner.assign(batch(1, 8, 0), 1)
    assert owner.expire(1_000) == 1
    assert list(owner.producers) == [7]
    with pytest.raises(InvalidProducerEpoch):
        owner.check_end(end(2))
    owner.assign_marker(end(3), 2)
    assert owner.expire(1_000) == 1


def test_the_last_offset_has_no_marker_after_it() -> None:
    owner = OffsetAssigner(MOST_OFFSET - 1)
    owner.assign(transactional(0), 1)
    with pytest.raises(OffsetsExhausted):
        owner.assign_marker(end(), 2)
    assert list(owner.transactions.open) == [7]
