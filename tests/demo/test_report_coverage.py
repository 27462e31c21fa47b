from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.flights import WHOLE, Figure
from headrace.demo.messages import Read
from headrace.demo.report import Coverage


def read(partition: int, first: int, count: int) -> Read:
    """Offsets have different delays: the sum would reveal a duplicate."""
    return Read(partition, first, ["UA"] * count, [1] * count, [2**offset for offset in range(first, first + count)])


def test_repeated_deliveries_are_counted_once() -> None:
    coverage = Coverage()
    coverage.add(read(0, 0, 5))
    coverage.add(read(0, 3, 5))
    assert (coverage.seen, coverage.again) == (8, 2)
    assert coverage.figures()[WHOLE] == Figure(8, 8, 2**8 - 1)
    assert coverage.missing({0: 8}) == []


def test_the_same_offset_of_another_partition_is_another_record() -> None:
    coverage = Coverage()
    coverage.add(read(0, 0, 2))
    coverage.add(read(1, 0, 2))
    assert (coverage.seen, coverage.again) == (4, 0)


def test_a_record_never_read_is_missing() -> None:
    coverage = Coverage()
    coverage.add(read(0, 0, 3))
    coverage.add(read(0, 4, 2))
    assert coverage.missing({0: 6}) == ["partition 0: 1 records were never read, the first at offset 3"]
    assert coverage.missing({0: 8}) == ["partition 0: 3 records were never read, the first at offset 3"]


def test_the_end_of_a_log_never_reached_is_missing() -> None:
    coverage = Coverage()
    coverage.add(read(0, 0, 3))
    assert coverage.missing({0: 5, 1: 1, 2: 0}) == [
        "partition 0: 2 records were never read, the first at offset 3",
        "partition 1: 1 records were never read, the first at offset 0",
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 10)), max_size=20))
def test_it_agrees_with_a_set(deliveries: list[tuple[int, int, int]]) -> None:
    coverage = Coverage()
    wanted = set()
    for partition, first, count in deliveries:
        coverage.add(read(partition, first, count))
        wanted |= {(partition, offset) for offset in range(first, first + count)}
    assert coverage.seen == len(wanted)
    assert coverage.seen + coverage.again == sum(count for *_, count in deliveries)
    figures = coverage.figures()
    assert figures.get(WHOLE, Figure(0, 0, 0)) == Figure(
        len(wanted), len(wanted), sum(2**offset for _, offset in wanted)
    )
