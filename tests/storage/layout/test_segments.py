from headrace.storage.layout import segments
from headrace.topics.segments import CleanedLog, CleanedSegment


def test_rows_are_segments() -> None:
    rows = b"3:0:20:1000:-1:2 5:20:35:10:1700000000000:1"
    found = (CleanedSegment(3, 0, 20, 1000, -1, 2), CleanedSegment(5, 20, 35, 10, 1_700_000_000_000, 1))
    assert segments.decode([rows, b"40", b"6"]) == CleanedLog(found, 40, 6)
    assert segments.decode([rows, b"40"]) == CleanedLog(found, 40, 0)


def test_a_log_that_was_never_cleaned_has_none() -> None:
    assert segments.decode([None, None, None]) == CleanedLog()
    assert segments.decode([b"", b"7", b"1"]) == CleanedLog((), 7, 1)


def test_a_range_begins_after_the_entry_before_it() -> None:
    assert segments.bounds(5, 9) == ("0-6", "0-9")
