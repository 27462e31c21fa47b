import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.layout import partition
from headrace.topics.leader_epochs import EpochRow
from headrace.topics.producer_state import ProducerStateEntry, SentBatch


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
