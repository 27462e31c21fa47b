"""Offsets, limits and ranges, without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark import plan
from headrace.spark.errors import DataLoss, OptionError
from headrace.spark.options import EARLIEST, LATEST
from headrace.spark.plan import Extent, Range

LOG = {0: Extent(10, 100), 1: Extent(0, 5)}
waiting = st.dictionaries(st.integers(0, 20), st.integers(0, 10**12), min_size=1, max_size=12)


def test_words_become_offsets() -> None:
    assert plan.resolve("startingOffsets", EARLIEST, LOG) == {0: 10, 1: 0}
    assert plan.resolve("startingOffsets", LATEST, LOG) == {0: 100, 1: 5}
    assert plan.resolve("startingOffsets", {0: 23, 1: EARLIEST}, LOG) == {0: 23, 1: 0}


@pytest.mark.parametrize("positions", [{0: 1}, {0: 1, 1: 1, 2: 1}])
def test_json_names_every_partition_and_no_other(positions: dict[int, int]) -> None:
    with pytest.raises(OptionError, match="partitions"):
        plan.resolve("startingOffsets", positions, LOG)


def test_a_new_partition_is_read_from_its_start() -> None:
    assert plan.with_new_partitions({0: 50}, LOG) == {0: 50, 1: 0}


@given(waiting, st.integers(1, 10**12))
def test_a_limit_is_met_exactly_and_moves_no_partition_back(sizes: dict[int, int], max_rows: int) -> None:
    start = {partition: 7 * partition for partition in sizes}
    end = {partition: start[partition] + size for partition, size in sizes.items()}
    limited = plan.limit(start, end, max_rows)
    taken = {partition: limited[partition] - start[partition] for partition in sizes}
    assert sum(taken.values()) == min(max_rows, sum(sizes.values()))
    assert all(0 <= taken[partition] <= sizes[partition] for partition in sizes)


def test_a_limit_is_shared_in_proportion() -> None:
    assert plan.limit({0: 0, 1: 0}, {0: 900, 1: 100}, 10) == {0: 9, 1: 1}


def test_no_partition_starves_under_a_tiny_limit() -> None:
    position, end = {0: 0, 1: 0, 2: 0}, {0: 1000, 1: 2, 2: 1}
    for _ in range(1003):
        position = plan.limit(position, end, 1)
    assert position == end


@given(waiting, st.none() | st.integers(1, 64), st.none() | st.integers(10**9, 10**12))
def test_ranges_cover_every_offset_once(sizes: dict[int, int], at_least: int | None, max_records: int | None) -> None:
    start = dict.fromkeys(sizes, 3)
    end = {partition: 3 + size for partition, size in sizes.items()}
    ranges = plan.split(start, end, at_least=at_least, max_records=max_records)
    for partition, size in sizes.items():
        edges = [(item.start, item.end) for item in ranges if item.partition == partition]
        assert [low for low, _ in edges] == [3, *(high for _, high in edges[:-1])] if size else not edges
        assert not edges or edges[-1][1] == 3 + size
    assert all(item.start < item.end for item in ranges)
    assert max_records is None or all(item.end - item.start <= max_records for item in ranges)


def test_one_range_per_partition_unless_more_are_asked_for() -> None:
    start, end = {0: 0, 1: 0, 2: 4}, {0: 30, 1: 10, 2: 4}
    assert plan.split(start, end) == [Range(0, 0, 30), Range(1, 0, 10)]
    assert plan.split(start, end, at_least=4) == [Range(0, 0, 10), Range(0, 10, 20), Range(0, 20, 30), Range(1, 0, 10)]


def test_offsets_below_the_log_start_are_lost() -> None:
    with pytest.raises(DataLoss, match=r"offsets 4 to 9 of t-0 are gone \(log start 10\)"):
        plan.within_log("t", {0: 4, 1: 0}, LOG, fail_on_data_loss=True)
    assert plan.within_log("t", {0: 4, 1: 0}, LOG, fail_on_data_loss=False) == {0: 10, 1: 0}


def test_offsets_beyond_the_log_end_are_lost() -> None:
    with pytest.raises(DataLoss, match="offset 6 of t-1 is beyond the log end 5"):
        plan.within_log("t", {0: 10, 1: 6}, LOG, fail_on_data_loss=True)
    assert plan.within_log("t", {0: 10, 1: 6}, LOG, fail_on_data_loss=False) == {0: 10, 1: 5}


def test_the_log_end_itself_is_a_fine_place_to_stand() -> None:
    assert plan.within_log("t", {0: 100, 1: 5}, LOG, fail_on_data_loss=True) == {0: 100, 1: 5}


def test_the_checkpoints_form_is_that_of_sparks_kafka_source() -> None:
    assert plan.to_json("t", {1: 5, 0: 7}) == {"t": {"0": 7, "1": 5}}
    assert plan.from_json("t", {"t": {"0": 7, "1": 5}}) == {0: 7, 1: 5}


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    with pytest.raises(OptionError, match="use another one"):
        plan.from_json("t", {"u": {"0": 7}})
