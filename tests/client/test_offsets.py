"""Offsets, limits and ranges, without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import offsets
from headrace.client.errors import DataLoss
from headrace.client.offsets import Extent, Range, TopicPartition

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
LOG = {P0: Extent(10, 100), P1: Extent(0, 5)}
waiting = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "u"]), st.integers(0, 20)),
    st.integers(0, 10**12),
    min_size=1,
    max_size=12,
)


def test_a_new_partition_is_read_from_its_start() -> None:
    assert offsets.with_new_partitions({P0: 50}, LOG) == {P0: 50, P1: 0}


@given(waiting, st.integers(1, 10**12))
def test_a_limit_is_met_exactly_and_moves_no_partition_back(sizes: dict[TopicPartition, int], max_rows: int) -> None:
    start = {partition: 7 * partition.partition for partition in sizes}
    end = {partition: start[partition] + size for partition, size in sizes.items()}
    limited = offsets.limit(start, end, max_rows)
    taken = {partition: limited[partition] - start[partition] for partition in sizes}
    assert sum(taken.values()) == min(max_rows, sum(sizes.values()))
    assert all(0 <= taken[partition] <= sizes[partition] for partition in sizes)


def test_a_limit_is_shared_in_proportion() -> None:
    assert offsets.limit({P0: 0, P1: 0}, {P0: 900, P1: 100}, 10) == {P0: 9, P1: 1}


def test_no_partition_starves_under_a_tiny_limit() -> None:
    position, end = {P0: 0, P1: 0, P2: 0}, {P0: 1000, P1: 2, P2: 1}
    for _ in range(1003):
        position = offsets.limit(position, end, 1)
    assert position == end


@given(waiting, st.integers(1, 10**12), st.floats(1, 10**6))
def test_a_limit_in_bytes_moves_on_and_stays_below(sizes: dict[TopicPartition, int], most: int, size: float) -> None:
    start = dict.fromkeys(sizes, 5)
    end = {partition: 5 + count for partition, count in sizes.items()}
    limited = offsets.limit_bytes(start, end, most, dict.fromkeys(sizes, size))
    taken = {partition: limited[partition] - 5 for partition in sizes}
    assert all(0 <= taken[partition] <= sizes[partition] for partition in sizes)
    assert sum(taken.values()) * size <= max(most, size) * (1 + 1e-9)
    assert sum(taken.values()) > 0 or not any(sizes.values())


def test_partitions_that_are_gone_are_named() -> None:
    with pytest.raises(DataLoss, match="t-2 is gone"):
        offsets.check_partitions([P0, P2], LOG, fail_on_data_loss=True)
    offsets.check_partitions([P0, P2], LOG, fail_on_data_loss=False)


def test_offsets_in_a_checkpoint_are_those_of_sparks_kafka_source() -> None:
    positions = {P1: 7, P0: 3, TopicPartition("u", 10): 4}
    assert offsets.to_json(positions) == {"t": {"0": 3, "1": 7}, "u": {"10": 4}}
    assert offsets.from_json(offsets.to_json(positions)) == positions


@given(waiting, st.none() | st.integers(1, 64), st.none() | st.integers(10**9, 10**12))
def test_ranges_cover_every_offset_once(
    sizes: dict[TopicPartition, int], at_least: int | None, max_records: int | None
) -> None:
    start = dict.fromkeys(sizes, 3)
    end = {partition: 3 + size for partition, size in sizes.items()}
    ranges = offsets.split(start, end, at_least=at_least, max_records=max_records)
    for partition, size in sizes.items():
        edges = [(item.start, item.end) for item in ranges if item.partition == partition]
        assert [low for low, _ in edges] == [3, *(high for _, high in edges[:-1])] if size else not edges
        assert not edges or edges[-1][1] == 3 + size
    assert all(item.start < item.end for item in ranges)
    assert max_records is None or all(item.end - item.start <= max_records for item in ranges)


def test_one_range_per_partition_unless_more_are_asked_for() -> None:
    start, end = {P0: 0, P1: 0, P2: 4}, {P0: 30, P1: 10, P2: 4}
    assert offsets.split(start, end) == [Range(P0, 0, 30), Range(P1, 0, 10)]
    assert offsets.split(start, end, at_least=4) == [
        Range(P0, 0, 10),
        Range(P0, 10, 20),
        Range(P0, 20, 30),
        Range(P1, 0, 10),
    ]


def test_offsets_below_the_log_start_are_lost() -> None:
    with pytest.raises(DataLoss, match=r"offsets 4 to 9 of t-0 are gone \(log start 10\)"):
        offsets.within_log({P0: 4, P1: 0}, LOG, fail_on_data_loss=True)
    assert offsets.within_log({P0: 4, P1: 0}, LOG, fail_on_data_loss=False) == {P0: 10, P1: 0}


def test_offsets_beyond_the_log_end_are_lost() -> None:
    with pytest.raises(DataLoss, match="offset 6 of t-1 is beyond the log end 5"):
        offsets.within_log({P0: 10, P1: 6}, LOG, fail_on_data_loss=True)
    assert offsets.within_log({P0: 10, P1: 6}, LOG, fail_on_data_loss=False) == {P0: 10, P1: 5}


def test_the_log_end_itself_is_a_fine_place_to_stand() -> None:
    assert offsets.within_log({P0: 100, P1: 5}, LOG, fail_on_data_loss=True) == {P0: 100, P1: 5}
