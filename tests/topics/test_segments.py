import pytest

from headrace.topics.segments import CleanedLog, CleanedSegment

LOG = CleanedLog(
    (
        CleanedSegment(4, 0, 10, 100, 1_000, 3),
        CleanedSegment(2, 10, 15, 50, 2_000, 2),
        CleanedSegment(3, 20, 30, 25, 2_000, 1),
    ),
    end=35,
    next_number=5,
)


def test_sizes_and_times_are_those_of_all_segments() -> None:
    assert (LOG.size, LOG.newest) == (175, 2_000)
    assert (CleanedLog().size, CleanedLog().newest) == (0, -1)


@pytest.mark.parametrize(("offset", "numbers"), [(0, [4, 2, 3]), (9, [4, 2, 3]), (10, [2, 3]), (17, [3]), (30, [])])
def test_segments_from_an_offset_on(offset: int, numbers: list[int]) -> None:
    assert [each.number for each in LOG.from_offset(offset)] == numbers


@pytest.mark.parametrize(
    ("before_ms", "max_bytes", "kept"),
    [
        (None, None, 0),
        (1_000, None, 0),
        (1_001, None, 10),
        (2_001, None, None),
        (None, 1_175, 0),
        (None, 1_076, 0),
        (None, 1_075, 10),
        (None, 1_025, 20),
        (None, 1_001, 20),
        (None, 1_000, None),
        (1_001, 1_025, 20),
    ],
)
def test_retention_keeps_segments_from_an_offset_on(
    before_ms: int | None, max_bytes: int | None, kept: int | None
) -> None:
    """The stream has 1,000 bytes. As in Kafka, the bytes that are kept may exceed the limit by a segment."""
    assert LOG.retained_from(before_ms, max_bytes, 1_000) == kept
