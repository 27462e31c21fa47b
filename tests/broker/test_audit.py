"""Refusals in the log: each has a line, and a flood of them has few."""

from structlog.testing import capture_logs

from headrace.broker.audit import MOST_LINES, WINDOW_MS, Audit
from headrace.testing.clock import ManualClock


def test_beyond_ten_a_minute_of_an_address_and_reason_they_are_counted() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(1_000):
            audit.refused("User:a", "10.0.0.1", "Write Topic", f"User:a may not Write Topic {number}", request=number)
        audit.refused("User:a", "10.0.0.2", "Write Topic", "User:a may not Write Topic t")
        audit.refused("User:a", "10.0.0.1", "Read Topic", "User:a may not Read Topic t")
        assert len(lines) == MOST_LINES + 2
        assert (lines[0]["principal"], lines[0]["client"], lines[0]["request"]) == ("User:a", "10.0.0.1", 0)
        clock.advance(WINDOW_MS)
        assert len(lines) == MOST_LINES + 3
        assert (lines[-1]["count"], lines[-1]["client"]) == (1_000 - MOST_LINES, "10.0.0.1")
        audit.refused("User:a", "10.0.0.1", "Write Topic", "User:a may not Write Topic t")
        assert len(lines) == MOST_LINES + 4


def test_what_strangers_choose_is_cut_and_their_number_bounded() -> None:
    audit = Audit(ManualClock())
    with capture_logs() as lines:
        for number in range(5_000):
            audit.refused("User:" + "a" * 2_000, str(number), "Write Topic", "x" * 5_000)
    assert 500 < len(lines) < 2_000
    assert all(len(str(line)) < 1_000 for line in lines)
