"""The journal's file: what is found in it again, after which ends, and when there is room in it."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.storage.journals import HALF, HEAD, LARGEST, LOG, STREAM, append, batches, enter, reopened

from headrace.records.markers import Marker, build_marker
from headrace.storage.errors import StoreError
from headrace.storage.journal.journal import SMALLEST, Entry, Journal
from headrace.topics.model import Append


def test_an_entry_has_all_that_is_known_of_its_batch(journal_path: Path, journal: Journal) -> None:
    full = append(b"a", 200, producer_id=2**62, producer_epoch=2**15 - 1, base_sequence=2**31 - 1)
    plain = append(b"b", 90, max_timestamp=-1, span=2**31 - 1)
    assert journal.add("headrace:tö:3".encode(), b"other", 2**53 - 2, 17, full) == 1
    assert journal.add(STREAM.encode(), b"", 0, 2**50, plain) == 2
    assert journal.number == 2
    assert reopened(journal_path) == [
        Entry(1, "headrace:tö:3", b"other", 2**53 - 2, 17, full),
        Entry(2, STREAM, b"", 0, 2**50, plain),
    ]


def test_views_are_entered_like_bytes(journal_path: Path, journal: Journal) -> None:
    batch = bytes(append().batch)
    for kind in (bytearray, lambda whole: memoryview(bytearray(whole))):
        enter(journal, Append(kind(batch), 1, 5))
    assert batches(reopened(journal_path)) == [batch] * 2


def test_markers_are_found_again(journal_path: Path, journal: Journal) -> None:
    """The check of clients' batches refuses them."""
    marker = Append(build_marker(Marker(7, 1, True, 3), 5), 1, 5)
    enter(journal, append(b"a"), marker, append(b"b"))
    found = Journal.open(journal_path, SMALLEST)
    entries, damaged = found.found()
    found.close()
    assert damaged == []
    assert batches(entries) == [bytes(each.batch) for each in (append(b"a"), marker, append(b"b"))]


def test_what_is_kept_elsewhere_is_not_found_again(journal_path: Path, journal: Journal) -> None:
    enter(journal, *(append(b"%d" % number) for number in range(5)))
    journal.kept(3)
    assert [entry.number for entry in reopened(journal_path)] == [4, 5]
    journal.kept(5)
    assert reopened(journal_path) == []


def test_both_halves_and_the_turn_between_them(journal_path: Path, journal: Journal) -> None:
    """The first half fills, the second does, then there is no room until the whole first one is kept elsewhere."""
    each = append(size=100_000)
    half = HALF // 100_100
    assert half >= 5
    numbers = enter(journal, *[each] * (2 * half))
    assert numbers == list(range(1, 2 * half + 1))
    assert [entry.number for entry in reopened(journal_path)] == numbers
    assert enter(journal, each, append()) == [0, 2 * half + 1], "a small one may find room where a large one does not"
    journal.kept(half - 1)
    assert enter(journal, each) == [0]
    journal.kept(half)
    assert enter(journal, each) == [2 * half + 2]
    assert [entry.number for entry in reopened(journal_path)] == list(range(half + 1, 2 * half + 3))


def test_nothing_is_overwritten_before_it_is_kept_elsewhere(journal_path: Path, journal: Journal) -> None:
    each = append(size=60_000)
    number = stored = 0
    for turn in range(300):
        number = enter(journal, each)[0]
        if not number:
            stored += 1 + turn % 7
            stored = min(stored, journal.number)
            journal.kept(stored)
        assert [entry.number for entry in reopened(journal_path)] == list(range(stored + 1, journal.number + 1))
    assert journal.number > 100


def test_an_entry_that_fills_a_half_exactly(journal_path: Path, journal: Journal) -> None:
    whole = append(size=LARGEST)
    assert enter(journal, append(), whole) == [1, 2]
    assert [len(entry.append.batch) for entry in reopened(journal_path)] == [100, LARGEST]
    journal.kept(1)
    assert enter(journal, whole) == [3]
    assert [entry.number for entry in reopened(journal_path)] == [2, 3]
    assert enter(journal, append()) == [0]


def test_an_entry_larger_than_a_half_finds_no_room(journal_path: Path, journal: Journal) -> None:
    assert enter(journal, append(), append(size=LARGEST + 1), append()) == [1, 0, 2]
    assert [entry.number for entry in reopened(journal_path)] == [1, 2]


def test_what_earlier_laps_have_left_is_not_found(journal_path: Path, journal: Journal) -> None:
    """Entries of one size: each new one ends exactly where one of an earlier lap begins."""
    each = append(size=50_000)
    for _ in range(5):
        while number := enter(journal, each)[0]:
            last = number
        journal.kept(last - 1)
    assert [entry.number for entry in reopened(journal_path)] == [last]
    # Stored, but that was not written down any more: at the worst everything of this lap is stored again.
    journal.kept(last - 3)
    enter(journal, each)
    assert [entry.number for entry in reopened(journal_path)] == [last - 2, last - 1, last, last + 1]


def test_a_server_that_starts_goes_on_counting(journal_path: Path, journal: Journal) -> None:
    enter(journal, append(), append(), append())
    journal.kept(1)
    journal.close()
    second = Journal.open(journal_path, SMALLEST)
    assert [entry.number for entry in second.in_doubt()] == [2, 3]
    second = second.renewed(SMALLEST)
    assert second.in_doubt() == []
    assert enter(second, append(b"new")) == [4]
    second.close()
    third = Journal.open(journal_path, SMALLEST)
    assert [entry.number for entry in third.in_doubt()] == [4]
    third.close()


def test_numbers_go_on_after_everything_was_stored(journal_path: Path, journal: Journal) -> None:
    for _ in range(3):
        enter(journal, *[append(size=50_000)] * 30)
        journal.kept(journal.number)
    number = journal.number
    journal.close()
    second = Journal.open(journal_path, SMALLEST).renewed(SMALLEST)
    assert second.number == number
    # What is left of before lies behind it in either half.
    assert enter(second, append(size=50_000)) == [number + 1]
    assert [entry.number for entry in reopened(journal_path)] == [number + 1]
    second.close()


def test_nothing_is_entered_before_what_is_there_may_go(journal_path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.close()
    second = Journal.open(journal_path, SMALLEST)
    assert enter(second, append()) == [0]
    assert len(second.in_doubt()) == 1
    assert enter(second.renewed(SMALLEST), append()) == [2]
    second.close()


def test_another_size_from_now_on(journal_path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.close()
    opened = Journal.open(journal_path, 4 * SMALLEST)
    assert opened.size == HEAD + SMALLEST
    assert len(opened.in_doubt()) == 1
    larger = opened.renewed(4 * SMALLEST)
    assert larger.size == journal_path.stat().st_size == HEAD + 4 * SMALLEST
    assert enter(larger, append(size=SMALLEST)) == [1]
    assert [len(entry.append.batch) for entry in reopened(journal_path)] == [SMALLEST]
    larger.kept(1)
    smaller = larger.renewed(SMALLEST)
    assert journal_path.stat().st_size == HEAD + SMALLEST
    smaller.close()


@pytest.mark.parametrize("size", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 4_095])
def test_no_journal_is_smaller_than_the_smallest(journal_path: Path, size: int) -> None:
    opened = Journal.open(journal_path, size)
    assert opened.size == journal_path.stat().st_size == HEAD + SMALLEST
    assert enter(opened.renewed(size), append()) == [1]
    opened.close()


def test_it_is_the_owners_alone(journal_path: Path, journal: Journal) -> None:
    assert journal_path.stat().st_mode & 0o777 == 0o600


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path, tmp_path / "missing" / "journal", tmp_path / "link"):
        with pytest.raises(StoreError, match=f"cannot open the journal {path}: "):
            Journal.open(path, SMALLEST)
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_is_full(journal_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError, match=f"cannot make the journal {journal_path}: No space left on device"):
            Journal.open(journal_path, SMALLEST)
    # Once there is room it is made as if nothing had been.
    Journal.open(journal_path, SMALLEST).close()


def test_removed(journal_path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.remove()
    assert not journal_path.exists()
    assert reopened(journal_path) == []


def test_set_aside(journal_path: Path, journal: Journal) -> None:
    """It is kept for inspection; files that were set aside before are not overwritten."""
    kept = []
    for text in (b"a", b"b", b"c"):
        opened = Journal.open(journal_path, SMALLEST).renewed(SMALLEST)
        enter(opened, append(text))
        place = opened.set_aside()
        assert not journal_path.exists()
        kept.append((place, text))
    for place, text in kept:
        found = Journal.open(place, SMALLEST)
        assert [bytes(entry.append.batch) for entry in found.in_doubt()] == [bytes(append(text).batch)]
        found.close()


class Machine(RuleBasedStateMachine):
    """Any order of entries, of news that they are stored, and of ends, held against a list."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name, "journal")
        self.expected: list[tuple[int, bytes]] = []
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.journal = Journal.open(self.path, SMALLEST).renewed(SMALLEST)

    @rule(sizes=st.lists(st.sampled_from([80, 81, 87, 1_000, 30_000, 100_000, 400_000, 524_216]), max_size=12))
    def add(self, sizes: list[int]) -> None:
        for size in sizes:
            each = BATCHES[size]
            number = self.journal.add(STREAM.encode(), LOG, self.number, 0, each)
            if number:
                assert number == self.number + 1
                self.number = number
                self.expected.append((number, bytes(each.batch)))
            else:
                # What waits and this one are more than a half.
                used = sum(len(batch) + 150 for _, batch in self.expected)
                assert used + size + 150 > HALF

    @rule(part=st.floats(0, 1))
    def store(self, part: float) -> None:
        count = round(part * len(self.expected))
        if count:
            self.journal.kept(self.expected[count - 1][0])
            del self.expected[:count]

    @rule(renewed=st.booleans())
    def end_and_start(self, renewed: bool) -> None:
        self.journal.close()
        self.journal = Journal.open(self.path, SMALLEST)
        self.found()
        if not renewed:
            # Ended once more before it could do anything.
            self.journal.close()
            self.journal = Journal.open(self.path, SMALLEST)
            self.found()
        self.journal = self.journal.renewed(SMALLEST)
        self.expected = []
        assert self.journal.number == self.number

    @invariant()
    def found(self) -> None:
        entries, damaged = self.journal.found()
        assert [(entry.number, bytes(entry.append.batch)) for entry in entries] == self.expected
        assert damaged == []

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()


BATCHES = {size: append(size=size) for size in (80, 81, 87, 1_000, 30_000, 100_000, 400_000, 524_216)}


@pytest.mark.generated
def test_a_journal_is_a_list() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))


def test_a_copy_with_holes_gets_its_room_when_it_is_opened(journal_path: Path, journal: Journal) -> None:
    """Else there may be none when a batch comes: that is no error, but a signal that ends the server."""
    enter(journal, append())
    copy = journal_path.with_name("copy")
    content = journal_path.read_bytes()
    with copy.open("xb") as file:
        file.write(content.rstrip(b"\0"))
        file.truncate(len(content))
    assert copy.stat().st_blocks * 512 < len(content)
    opened = Journal.open(copy, SMALLEST)
    try:
        assert copy.stat().st_blocks * 512 >= len(content)
        assert [entry.number for entry in opened.in_doubt()] == [1]
    finally:
        opened.close()


def test_nothing_that_looks_like_an_entry_of_an_earlier_lap_is_found(journal_path: Path, journal: Journal) -> None:
    numbers = [number for _ in range(6) for number in enter(journal, append(size=HALF // 3))]
    journal.kept(max(numbers))
    for _ in range(6):
        numbers += enter(journal, append(size=HALF // 5))
    doubtful = [entry.number for entry in reopened(journal_path)]
    assert doubtful == [number for number in numbers[6:] if number]
    assert doubtful
