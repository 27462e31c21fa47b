import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from headrace.cli.log_output import OF_ONE_CLIENT, OF_ONE_EVENT, WINDOW_S, Allowance, Line, Repeats, StderrWriter


def lost_line(lines: int, reason: str) -> str:
    return f"lost {lines}: {reason}"


@pytest.fixture
def opened() -> Iterator[Callable[[str, int], int]]:
    descriptors = []

    def open_(path: str, flags: int) -> int:
        descriptors.append(os.open(path, flags, 0o600))
        return descriptors[-1]

    yield open_
    for descriptor in descriptors:
        os.close(descriptor)


def test_lines_are_written_in_their_order(tmp_path: Path, opened: Callable[[str, int], int]) -> None:
    path = tmp_path / "log"
    writer = StderrWriter(opened(str(path), os.O_WRONLY | os.O_CREAT), lost_line)
    for number in range(1_000):
        writer.write(f"line {number}")
    assert writer.flush(60)
    assert path.read_text().splitlines() == [f"line {number}" for number in range(1_000)]
    assert writer.lost == 0


def test_lines_that_a_full_disk_refuses_are_counted_and_reported_later(
    tmp_path: Path, opened: Callable[[str, int], int]
) -> None:
    path = tmp_path / "log"
    target = os.dup(opened("/dev/full", os.O_WRONLY))
    writer = StderrWriter(target, lost_line)
    for number in range(5):
        writer.write(f"line {number}")
    assert writer.flush(60)
    assert writer.lost == 5
    # The disk has room again.
    os.dup2(opened(str(path), os.O_WRONLY | os.O_CREAT), target)
    writer.write("next")
    assert writer.flush(60)
    assert path.read_text().splitlines() == ["lost 5: No space left on device", "next"]
    assert writer.lost == 5


def test_a_blocked_reader_costs_lines_and_delays_no_client() -> None:
    reader, target = os.pipe()
    writer = StderrWriter(target, lost_line, most_lines=100)
    for _ in range(1_000):
        writer.write("x" * 1_000)
    # At most 64 KiB are in the pipe, a line is in the thread's hand, and 100 wait.
    assert 800 < writer.lost <= 900
    assert not writer.flush(0.01)
    received = bytearray()

    def read() -> None:
        while chunk := os.read(reader, 65_536):
            received.extend(chunk)

    reading = threading.Thread(target=read)
    reading.start()
    assert writer.flush(60)
    os.close(target)
    reading.join()
    os.close(reader)
    lines = received.decode().splitlines()
    assert lines.count("x" * 1_000) == 1_000 - writer.lost
    told = [line.split() for line in lines if line.startswith("lost ")]
    assert sum(int(words[1].rstrip(":")) for words in told) == writer.lost
    assert told[0][2:] == ["stderr", "is", "not", "read"]


def test_a_line_that_was_cut_off_does_not_run_into_the_next() -> None:
    reader, target = os.pipe()
    os.set_blocking(target, False)
    writer = StderrWriter(target, lost_line)
    writer.write("x" * 100_000)
    assert writer.flush(60)
    assert writer.lost == 1
    first = os.read(reader, 1 << 20)
    assert set(first) == {ord("x")}
    writer.write("next")
    assert writer.flush(60)
    assert os.read(reader, 1 << 20) == b"\nlost 1: stderr is not read\nnext\n"
    os.close(reader)


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def passes(repeats: Repeats, method: str, **line: object) -> bool:
    try:
        repeats(None, method, dict(line))
    except structlog.DropEvent:
        return False
    return True


def test_the_same_line_again_is_counted() -> None:
    clock = Seconds()
    repeats = Repeats(clock)
    assert passes(repeats, "warning", event="refused", client="a", request="1")
    assert not passes(repeats, "warning", event="refused", client="a", request="2")
    assert passes(repeats, "warning", event="refused", client="b", request="3")
    clock.now += 2
    assert not passes(repeats, "warning", event="refused", client="a", request="4")
    assert repeats.due() == []
    clock.now += WINDOW_S - 2
    told: list[tuple[str, Line]] = [
        ("warning", {"event": "refused", "client": "a", "repeated": 2, "within_s": WINDOW_S, "last_s_ago": 8})
    ]
    assert repeats.due() == told
    assert repeats.due() == []
    assert passes(repeats, "warning", event="refused", client="a")


def test_retained_lines_are_logged_before_they_are_dropped() -> None:
    repeats = Repeats(Seconds())
    for _ in range(3):
        passes(repeats, "info", event="moved")
    assert repeats.due(all_of_them=True) == [
        ("info", {"event": "moved", "repeated": 2, "within_s": 0, "last_s_ago": 0})
    ]


def test_a_flood_of_different_lines_has_an_end() -> None:
    clock = Seconds()
    repeats = Repeats(clock)
    passed = [passes(repeats, "warning", event="refused", topic=str(number)) for number in range(10_000)]
    assert sum(passed) == OF_ONE_EVENT.burst
    assert passes(repeats, "warning", event="something else")
    clock.now += WINDOW_S
    (told,) = repeats.due()
    assert told[1]["of"] == "refused"
    assert told[1]["repeated"] == 10_000 - OF_ONE_EVENT.burst


@pytest.mark.parametrize(
    ("fields", "most", "of"),
    [
        ({"client": "10.0.0.1"}, OF_ONE_CLIENT, "lines of one client left out"),
        ({}, OF_ONE_EVENT, "lines of one event left out"),
    ],
)
def test_a_flood_that_goes_on_all_day_writes_little(fields: dict[str, str], most: Allowance, of: str) -> None:
    """Each line is another one, as a client can have it that makes up names."""
    clock = Seconds()
    repeats = Repeats(clock)
    passed = summaries = number = 0
    for _ in range(200):
        for _ in range(1_500):
            number += 1
            passed += passes(repeats, "warning", event="refused", reason=str(number), **fields)
        clock.now += WINDOW_S
        summaries += [line["event"] for _, line in repeats.due()].count(of)
    assert passed <= most.burst + 200 * most.refill
    assert summaries == 200
    # After a quiet time there is a burst again.
    for _ in range(most.burst // most.refill):
        clock.now += WINDOW_S
        assert repeats.due() == []
    again = [passes(repeats, "warning", event="refused", reason=f"again {each}", **fields) for each in range(1_500)]
    assert sum(again) == most.burst


def test_a_client_that_floods_the_log_hides_no_other_lines() -> None:
    """Also not under many addresses of its network."""
    repeats = Repeats(Seconds())
    passed = [
        passes(repeats, "warning", event="refused", client=f"2001:db8::{each:x}", reason=str(each))
        for each in range(10_000)
    ]
    assert sum(passed) == OF_ONE_CLIENT.burst
    assert passes(repeats, "warning", event="refused", client="2001:db8:1::1", reason="1")
    assert passes(repeats, "warning", event="something else", client="2001:db8::1")
    assert sorted(str(line.get("client")) for _, line in repeats.due(all_of_them=True)) == ["2001:db8::/64"]


def test_lines_that_clients_make_up_do_not_switch_the_bounds_off() -> None:
    """Of as many events, clients and lines as it takes to fill what is remembered."""
    clock = Seconds()
    repeats = Repeats(clock)
    for each in range(6_000):
        passes(repeats, "warning", event=f"event {each}", client=f"10.0.{each >> 8}.{each & 255}")
    passed = [
        passes(repeats, "warning", event="refused", client=f"11.0.{each >> 8}.{each & 255}") for each in range(5_000)
    ]
    assert sum(passed) <= OF_ONE_CLIENT.burst
