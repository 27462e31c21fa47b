"""The journal's file: what is found in it again, after which ends, and when there is room in it."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.records.build import build
from headrace.store.errors import StoreError
from headrace.store.journal import SMALLEST, Entry, Journal, trouble
from headrace.topics.model import Append

HEAD, HALF = 4096, SMALLEST // 2
ENTRY_HEAD = 62
"""Bytes of an entry before its names, by the layout that `headrace.store.journal` describes."""
STREAM, LOG = "headrace:t:0", b"id"
NAMES = len(STREAM) + len(LOG)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """An empty one of the smallest size, ready to be written."""
    opened = Journal.open(path, SMALLEST).renewed(SMALLEST)
    yield opened
    opened.close()


def append(text: bytes = b"x", size: int = 100, **fields: int) -> Append:
    """A batch of exactly `size` bytes."""
    batch = build([(None, text, 5, ())])
    missing = size - len(batch)
    if missing > 0:
        # The lengths before the value grow with it.
        for more in range(missing, missing - 16, -1):
            batch = build([(None, text.ljust(len(text) + more, b"."), 5, ())])
            if len(batch) <= size:
                break
    assert len(batch) == size
    return Append(batch, **{"span": 1, "max_timestamp": 5, **fields})


def enter(journal: Journal, *batches: Append, base_offset: int = 0) -> list[int]:
    return [
        journal.add(STREAM.encode(), LOG, base_offset + place, 1_000 + place, each)
        for place, each in enumerate(batches)
    ]


def reopened(path: Path) -> list[Entry]:
    """What a server that starts would find."""
    found = Journal.open(path, SMALLEST)
    entries = found.in_doubt()
    found.close()
    return entries


def batches(entries: list[Entry]) -> list[bytes]:
    return [bytes(entry.append.batch) for entry in entries]


def largest(journal: Journal) -> int:
    """Bytes of the batch that fills a half."""
    return HALF - ENTRY_HEAD - NAMES


def test_an_entry_has_all_that_is_known_of_its_batch(path: Path, journal: Journal) -> None:
    full = append(b"a", 200, producer_id=2**62, producer_epoch=2**15 - 1, base_sequence=2**31 - 1)
    plain = append(b"b", 90, max_timestamp=-1, span=2**31 - 1)
    assert journal.add("headrace:tö:3".encode(), b"other", 2**53 - 2, 17, full) == 1
    assert journal.add(STREAM.encode(), b"", 0, 2**50, plain) == 2
    assert journal.number == 2
    assert reopened(path) == [
        Entry(1, "headrace:tö:3", b"other", 2**53 - 2, 17, full),
        Entry(2, STREAM, b"", 0, 2**50, plain),
    ]


def test_views_are_entered_like_bytes(path: Path, journal: Journal) -> None:
    batch = bytes(append().batch)
    for kind in (bytearray, lambda whole: memoryview(bytearray(whole))):
        enter(journal, Append(kind(batch), 1, 5))
    assert batches(reopened(path)) == [batch] * 2


def test_what_is_kept_elsewhere_is_not_found_again(path: Path, journal: Journal) -> None:
    enter(journal, *(append(b"%d" % number) for number in range(5)))
    journal.kept(3)
    assert [entry.number for entry in reopened(path)] == [4, 5]
    journal.kept(5)
    assert reopened(path) == []


def test_both_halves_and_the_turn_between_them(path: Path, journal: Journal) -> None:
    """The first half fills, the second does, then there is no room until the whole first one is kept elsewhere."""
    each = append(size=100_000)
    half = HALF // 100_100
    assert half >= 5
    numbers = enter(journal, *[each] * (2 * half))
    assert numbers == list(range(1, 2 * half + 1))
    assert [entry.number for entry in reopened(path)] == numbers
    assert enter(journal, each, append()) == [0, 2 * half + 1], "a small one may find room where a large one does not"
    journal.kept(half - 1)
    assert enter(journal, each) == [0]
    journal.kept(half)
    assert enter(journal, each) == [2 * half + 2]
    assert [entry.number for entry in reopened(path)] == list(range(half + 1, 2 * half + 3))


def test_nothing_is_overwritten_before_it_is_kept_elsewhere(path: Path, journal: Journal) -> None:
    each = append(size=60_000)
    number = stored = 0
    for turn in range(300):
        number = enter(journal, each)[0]
        if not number:
            stored += 1 + turn % 7
            stored = min(stored, journal.number)
            journal.kept(stored)
        assert [entry.number for entry in reopened(path)] == list(range(stored + 1, journal.number + 1))
    assert journal.number > 100


def test_an_entry_that_fills_a_half_exactly(path: Path, journal: Journal) -> None:
    most = largest(journal)
    whole = append(size=most)
    assert enter(journal, append(), whole) == [1, 2]
    assert [len(entry.append.batch) for entry in reopened(path)] == [100, most]
    journal.kept(1)
    assert enter(journal, whole) == [3]
    assert [entry.number for entry in reopened(path)] == [2, 3]
    assert enter(journal, append()) == [0]


def test_an_entry_larger_than_a_half_finds_no_room(path: Path, journal: Journal) -> None:
    assert enter(journal, append(), append(size=largest(journal) + 1), append()) == [1, 0, 2]
    assert [entry.number for entry in reopened(path)] == [1, 2]


@pytest.mark.parametrize("before", [0, 2])
def test_an_entry_that_a_kill_cut_off_is_none(path: Path, journal: Journal, before: int) -> None:
    """The batch is copied first, then the head: wherever the copy ends, those before are found and nothing else is."""
    earlier = [append(b"%d" % number) for number in range(before)]
    enter(journal, *earlier)
    journal.close()
    start = HEAD + sum(ENTRY_HEAD + NAMES + len(each.batch) + 7 & ~7 for each in earlier)
    blank = path.read_bytes()
    # As if an entry of an earlier lap had lain there: its remains show through where the copy has not come yet.
    for left_over in (bytes(4_000), os.urandom(4_000)):
        image = bytearray(blank)
        image[start : start + len(left_over)] = left_over
        path.write_bytes(image)
        opened = Journal.open(path, SMALLEST)
        opened.renewed(SMALLEST)
        enter(opened, *earlier)
        assert enter(opened, append(b"torn", 300)) == [2 * before + 1]
        opened.close()
        whole = path.read_bytes()
        image[:start] = whole[:start]
        body = start + ENTRY_HEAD + NAMES
        order = [*range(body, body + 300), *range(start, body)]
        assert batches(reopened(path)) == [bytes(each.batch) for each in earlier] + [bytes(append(b"torn", 300).batch)]
        for kept in range(len(order)):
            for place in order:
                image[place] = left_over[place - start]
            for place in order[:kept]:
                image[place] = whole[place]
            if image == whole:
                continue  # the rest was the same by chance
            with path.open("r+b") as file:
                file.seek(start)
                file.write(image[start : start + 400])
            assert batches(reopened(path)) == [bytes(each.batch) for each in earlier], kept


@pytest.mark.parametrize("at", [0, 4, 8, 20, 50, ENTRY_HEAD, ENTRY_HEAD + 40, 140])
def test_an_entry_with_a_wrong_byte_is_left_out(path: Path, journal: Journal, at: int) -> None:
    enter(journal, append(b"a"), append(b"b"), append(b"c"))
    place = HEAD + (ENTRY_HEAD + NAMES + 100 + 7 & ~7) + at
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))
    assert [entry.number for entry in reopened(path)] == [1, 3]


def test_what_earlier_laps_have_left_is_not_found(path: Path, journal: Journal) -> None:
    """Entries of one size: each new one ends exactly where one of an earlier lap begins."""
    each = append(size=50_000)
    for _ in range(5):
        while number := enter(journal, each)[0]:
            last = number
        journal.kept(last - 1)
    assert [entry.number for entry in reopened(path)] == [last]
    # Stored, but that was not written down any more: at the worst everything of this lap is stored again.
    journal.kept(last - 3)
    enter(journal, each)
    assert [entry.number for entry in reopened(path)] == [last - 2, last - 1, last, last + 1]


def test_a_server_that_starts_goes_on_counting(path: Path, journal: Journal) -> None:
    enter(journal, append(), append(), append())
    journal.kept(1)
    journal.close()
    second = Journal.open(path, SMALLEST)
    assert [entry.number for entry in second.in_doubt()] == [2, 3]
    second = second.renewed(SMALLEST)
    assert second.in_doubt() == []
    assert enter(second, append(b"new")) == [4]
    second.close()
    third = Journal.open(path, SMALLEST)
    assert [entry.number for entry in third.in_doubt()] == [4]
    third.close()


def test_numbers_go_on_after_everything_was_stored(path: Path, journal: Journal) -> None:
    for _ in range(3):
        enter(journal, *[append(size=50_000)] * 30)
        journal.kept(journal.number)
    number = journal.number
    journal.close()
    second = Journal.open(path, SMALLEST).renewed(SMALLEST)
    assert second.number == number
    # What is left of before lies behind it in either half.
    assert enter(second, append(size=50_000)) == [number + 1]
    assert [entry.number for entry in reopened(path)] == [number + 1]
    second.close()


def test_nothing_is_entered_before_what_is_there_may_go(path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.close()
    second = Journal.open(path, SMALLEST)
    assert enter(second, append()) == [0]
    assert len(second.in_doubt()) == 1
    assert enter(second.renewed(SMALLEST), append()) == [2]
    second.close()


def test_another_size_from_now_on(path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.close()
    opened = Journal.open(path, 4 * SMALLEST)
    assert opened.size == HEAD + SMALLEST
    assert len(opened.in_doubt()) == 1
    larger = opened.renewed(4 * SMALLEST)
    assert larger.size == path.stat().st_size == HEAD + 4 * SMALLEST
    assert enter(larger, append(size=SMALLEST)) == [1]
    assert [len(entry.append.batch) for entry in reopened(path)] == [SMALLEST]
    larger.kept(1)
    smaller = larger.renewed(SMALLEST)
    assert path.stat().st_size == HEAD + SMALLEST
    smaller.close()


@pytest.mark.parametrize("size", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 4_095])
def test_no_journal_is_smaller_than_the_smallest(path: Path, size: int) -> None:
    opened = Journal.open(path, size)
    assert opened.size == path.stat().st_size == HEAD + SMALLEST
    assert enter(opened.renewed(size), append()) == [1]
    opened.close()


def test_it_is_the_owners_alone(path: Path, journal: Journal) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_that_a_kill_cut_off_as_it_was_made_is_made_again(path: Path) -> None:
    for found in (b"", bytes(100), bytes(HEAD), bytes(HEAD + SMALLEST), bytes(16) + b"\1" * 8 + bytes(HEAD)):
        path.write_bytes(found)
        opened = Journal.open(path, SMALLEST).renewed(SMALLEST)
        assert enter(opened, append()) == [1]
        opened.close()
        assert len(reopened(path)) == 1
        path.unlink()


def test_no_journal(path: Path, journal: Journal) -> None:
    """Another version's, cut off, grown, or another file: whatever it holds must not be thrown away."""
    enter(journal, append())
    whole = path.read_bytes()
    assert trouble(path) is None
    for found, reason in (
        (b"HRJOURN1" + whole[8:], "journal is of another version of Headrace (journal 1, this one has 2), and"),
        (whole[:-4096], "journal is damaged, or no journal: what it holds may be missing"),
        (whole + bytes(4096), "journal is damaged, or no journal: "),
        (whole[:16] + b"\7" + whole[17:], "journal is damaged, or no journal: "),
        (b"#" * len(whole), "journal is damaged, or no journal: "),
    ):
        path.write_bytes(found)
        with pytest.raises(StoreError, match=re.escape(reason)) as refused:
            Journal.open(path, SMALLEST)
        assert str(refused.value) == f"{path} {trouble(path)}"
        assert path.read_bytes() == found
    path.write_bytes(whole)


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path, tmp_path / "missing" / "journal", tmp_path / "link"):
        with pytest.raises(StoreError, match=f"cannot open the journal {path}: "):
            Journal.open(path, SMALLEST)
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError, match=f"cannot make the journal {path}: No space left on device"):
            Journal.open(path, SMALLEST)
    # Once there is room it is made as if nothing had been.
    Journal.open(path, SMALLEST).close()


def test_removed(path: Path, journal: Journal) -> None:
    enter(journal, append())
    journal.remove()
    assert not path.exists()
    assert reopened(path) == []


def test_set_aside(path: Path, journal: Journal) -> None:
    """So that somebody can look into it; nothing that was set aside before is overwritten."""
    kept = []
    for text in (b"a", b"b", b"c"):
        opened = Journal.open(path, SMALLEST).renewed(SMALLEST)
        enter(opened, append(text))
        place = opened.set_aside()
        assert not path.exists()
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


def test_a_journal_is_a_list() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))


def test_an_entry_of_another_file_is_none_of_this_one(path: Path, journal: Journal) -> None:
    """So nothing that a client knows how to write passes for one."""
    other_path = path.with_name("other")
    other = Journal.open(other_path, SMALLEST).renewed(SMALLEST)
    enter(other, append(b"a"))
    other.close()
    enter(journal, append(b"b"))
    assert len(reopened(path)) == 1
    with path.open("r+b") as file:
        file.seek(HEAD)
        file.write(other_path.read_bytes()[HEAD : HEAD + 4096])
    assert reopened(path) == []


def test_a_copy_with_holes_gets_its_room_when_it_is_opened(path: Path, journal: Journal) -> None:
    """Else there may be none when a batch comes: that is no error, but a signal that ends the server."""
    enter(journal, append())
    copy = path.with_name("copy")
    content = path.read_bytes()
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


@pytest.mark.parametrize(
    ("wrong", "found", "damaged"),
    [
        ((3,), [2, 4, 5, 6], [range(3, 4)]),
        ((2, 4, 5), [3, 6], [range(2, 3), range(4, 6)]),
        ((6,), [2, 3, 4, 5], [range(6, 7)]),
        ((2, 3, 4, 5, 6), [], [range(2, 7)]),
    ],
)
@pytest.mark.parametrize("part", ["batch", "head"])
def test_damaged_entries_are_named_and_those_behind_them_found(
    path: Path, journal: Journal, part: str, wrong: tuple[int, ...], found: list[int], damaged: list[range]
) -> None:
    """They were acknowledged: to pass them over would be to lose them without a word. Numbers have no gaps."""
    journal.kept(enter(journal, append())[-1])
    enter(journal, *(append(b"%d" % number) for number in range(2, 7)))
    journal.close()
    content = bytearray(path.read_bytes())
    for number in wrong:
        content[content.index(b"%d....." % number) - (90 if part == "head" else 0)] ^= 0x80
    path.write_bytes(content)
    if part == "head" and 6 in wrong:
        damaged = []  # a kill leaves the newest one like that
    opened = Journal.open(path, SMALLEST)
    assert [entry.number for entry in opened.found().entries] == found
    assert opened.found().damaged == damaged
    opened.renewed(SMALLEST)
    assert opened.found() == ([], [])
    opened.close()


def test_a_head_older_than_what_is_behind_it_makes_no_damage(path: Path, journal: Journal) -> None:
    """A loss of power: the disk had the halves of later laps, and of the head what it was before them."""
    third = append(size=largest(journal) // 3 - 100)
    old = path.read_bytes()[:HEAD]
    for _ in range(4):
        journal.kept(enter(journal, third, third, third)[-1])
    journal.close()
    path.write_bytes(old + path.read_bytes()[HEAD:])
    opened = Journal.open(path, SMALLEST)
    found = opened.found()
    opened.close()
    assert found.damaged == []
    assert [entry.number for entry in found.entries] == [7, 8, 9, 10, 11, 12]


def test_nothing_that_looks_like_an_entry_of_an_earlier_lap_is_found(path: Path, journal: Journal) -> None:
    numbers = [number for _ in range(6) for number in enter(journal, append(size=HALF // 3))]
    journal.kept(max(numbers))
    for _ in range(6):
        numbers += enter(journal, append(size=HALF // 5))
    doubtful = [entry.number for entry in reopened(path)]
    assert doubtful == [number for number in numbers[6:] if number]
    assert doubtful
