import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.layout import partition
from headrace.topics.leader_epochs import EpochRow
from headrace.topics.producer_state import ProducerStateEntry, SentBatch
from headrace.topics.transactions import AbortedTransaction, EndedTransaction, OpenTransaction


def test_a_partition_without_a_leader_is_empty() -> None:
    assert partition.extent([None, None, None, None]) == (0, 0, None)


@pytest.mark.parametrize(("last", "end"), [(b"7-9007199254740991", 2**53 - 1), (b"7-4", 5), (None, 5)])
def test_the_log_end_comes_from_the_last_entry_or_the_keys_next_to_it(last: bytes | None, end: int) -> None:
    start, found, epochs = partition.extent([b"3", b"4", b"2:0:2 7:5:7", last])
    assert (start, found) == (3, end)
    assert epochs is not None
    assert epochs.rows == (EpochRow(2, 0, 2), EpochRow(7, 5, 7))


numbers = st.integers(0, 2**31 - 1)


@given(
    numbers, st.lists(st.builds(SentBatch, numbers, numbers, st.integers(0, 2**53)), min_size=1, max_size=5), numbers
)
def test_a_producer_is_read_as_it_was_written(epoch: int, batches: list[SentBatch], used: int) -> None:
    known = ProducerStateEntry(epoch, tuple(batches), used)
    assert partition.decode_producer(partition.encode_producer(known)) == known


def test_a_producer_whose_transaction_has_ended_has_its_number() -> None:
    known = ProducerStateEntry(3, (SentBatch(0, 4, 7),), 9, 5)
    assert partition.encode_producer(known) == b"3 9 0 4 7 5"
    assert partition.decode_producer(b"3 9 0 4 7 5") == known
    assert partition.decode_producer(b"3 9 0 4 7").ended == -1


def test_a_producer_with_an_epoch_from_a_marker_begins_at_sequence_0() -> None:
    known = partition.decode_producer(b"3 9 5")
    assert (known, known.expected) == (ProducerStateEntry(3, (), 9, 5), 0)


def test_transactions_are_stored_by_their_first_offset() -> None:
    opened = OpenTransaction(7, 40, 2, 1_000, 5)
    assert partition.encode_unstable(opened) == b"7 2 1000 5"
    assert partition.decode_unstable(b"o:40", b"7 2 1000 5") == opened
    ended = EndedTransaction(opened, 44, commit=False, stable_end=45)
    assert partition.encode_unstable(ended) == b"7 2 1000 5 44 0 45"
    assert partition.decode_unstable(b"o:40", b"7 2 1000 5 44 0 45") == ended
    with pytest.raises(ValueError, match="invalid literal"):
        partition.decode_unstable(b"o:40", b"seven")


@given(st.text(min_size=1), st.booleans())
def test_a_transaction_is_stored_with_its_id_of_any_characters(name: str, has_ended: bool) -> None:
    opened = OpenTransaction(7, 40, 2, 1_000, 5, name)
    known = EndedTransaction(opened, 44, commit=True, stable_end=45) if has_ended else opened
    assert partition.decode_unstable(b"o:40", partition.encode_unstable(known)) == known


def test_aborted_transactions_are_stored_by_their_marker() -> None:
    aborted = AbortedTransaction(7, 40, 2**53 - 1, 45)
    assert partition.encode_aborted(aborted) == b"7 40 45"
    assert partition.decode_aborted(b"7 40 45", b"9007199254740991") == aborted
