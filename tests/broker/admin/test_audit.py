"""Refusals in the log: each has a line, and a flood of them has few."""

from structlog.testing import capture_logs

from headrace.broker.admin.audit import MOST_LINES, WINDOW_MS, Audit
from headrace.testing.clock import ManualClock
from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence


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


def test_batches_of_a_client_that_goes_on_are_counted() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(100):
            error = OutOfOrderSequence(f"expected 3, found {number + 4}")
            audit.batch_refused("User:a", "10.0.0.1", "orders", number % 7, error)
        audit.batch_refused("User:a", "10.0.0.1", "orders", 0, InvalidProducerEpoch("epoch 1 is over"))
        audit.batch_refused("User:a", "10.0.0.1", "bills", 0, OutOfOrderSequence("expected 3, found 4"))
        assert len(lines) == MOST_LINES + 2
        clock.advance(WINDOW_MS)
    assert (lines[0]["reason"], lines[0]["topic"], lines[9]["partition"]) == ("expected 3, found 4", "orders", 2)
    [counted] = lines[MOST_LINES + 2 :]
    assert counted["event"] == "batch refused, more of the same"
    assert (counted["reason"], counted["count"]) == ("OutOfOrderSequence in orders", 100 - MOST_LINES)


def test_foreign_values_are_cut_and_their_number_is_bounded() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(5_000):
            audit.refused("User:" + "a" * 2_000, str(number), "Write Topic", "x" * 5_000)
        assert 500 < len(lines) < 2_000
        audit.changed("User:eve", "10.0.0.9", "CreateAcls", "User:eve may Alter Cluster")
        assert lines[-1]["principal"] == "User:eve"
        told = sum("count" not in line for line in lines)
        clock.advance(WINDOW_MS)
    assert sum(line.get("count", 0) for line in lines) == 5_001 - told
    assert all(len(str(line)) < 1_000 for line in lines)


def test_no_change_hides_among_others() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(3_000):
            audit.changed("User:a", "10.0.0.1", "CreateAcls", f"rule {number} added")
        assert len(lines) == 3_000
        for _ in range(MOST_LINES):
            audit.changed("User:a", "10.0.0.1", "CreateAcls", "rule 0 added")
        assert len(lines) == 3_000 + MOST_LINES - 1
        clock.advance(WINDOW_MS)
    assert [line["count"] for line in lines if "count" in line] == [1]


def test_a_network_of_ipv6_is_one_address() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(100):
            audit.login_refused("User:a", f"2001:db8::{number:x}", "PLAIN", "wrong")
        assert [line["client"] for line in lines] == [f"2001:db8::{number:x}" for number in range(MOST_LINES)]
        audit.login_refused("User:a", "2001:db8:0:1::1", "PLAIN", "wrong")
        assert len(lines) == MOST_LINES + 1
        clock.advance(WINDOW_MS)
    assert (lines[-1]["client"], lines[-1]["count"]) == ("2001:db8::/64", 100 - MOST_LINES)
