"""The sparse index against a plain list of batches."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.partition import size_index
from headrace.broker.partition.size_index import GRAIN, ColdReads, LogIndex

sizes = st.lists(st.one_of(st.integers(61, 2_000), st.integers(GRAIN // 2, 4 * GRAIN)), max_size=200)


@given(sizes, st.integers(0, 1000), st.integers(1, 1 << 20), st.data())
def test_a_read_up_to_the_end_found_brings_about_the_bytes_asked_for(
    batches: list[int], start: int, limit: int, data: st.DataObject
) -> None:
    made = LogIndex(start)
    for number, size in enumerate(batches):
        made.append(start + number, size)
    offset = data.draw(st.integers(start, start + len(batches)))
    assert made.covers(offset)

    end = made.end_of(offset, limit)
    read = batches[offset - start : None if end is None else end - start]

    # Never nothing when there is something; never more than a place or a batch over the limit.
    assert bool(read) == (offset < start + len(batches))
    assert sum(read) <= limit + 2 * GRAIN + max(batches, default=0)
    if end is not None:
        assert sum(read) + 2 * GRAIN + max(batches) >= min(limit, sum(batches[offset - start :]))


def test_offsets_before_the_server_started_are_not_covered() -> None:
    made = LogIndex(500)

    assert not made.covers(499)
    assert made.covers(500)


def test_a_long_log_has_a_coarser_index_not_a_larger_one(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(size_index, "_MOST_PLACES", 8)
    made = LogIndex(0)
    for number in range(1000):
        made.append(number, GRAIN)

    end = made.end_of(0, GRAIN)
    assert end is not None
    assert 0 < end <= 300


def test_cold_reads_begin_small_and_grow_while_batches_prove_small() -> None:
    cold = ColdReads()
    asked = []
    for _ in range(8):
        asked.append(cold.count)
        cold.learn(cold.count, cold.count, 100 * cold.count, 1 << 20)

    assert asked == [1, 2, 4, 8, 16, 32, 64, 64]

    cold.learn(64, 64, 64 << 20, 1 << 20)
    assert cold.count == 1


def test_cold_reads_that_end_where_no_more_fits_ask_for_no_more() -> None:
    cold = ColdReads()
    cold.learn(64, 10, 1 << 20, 1 << 20, full=True)
    assert cold.count == 10
    cold.learn(10, 3, 1 << 10, 1 << 20)
    assert cold.count == 10
