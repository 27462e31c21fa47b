"""What of a journal is believed after a kill, a loss of power, or a wrong byte; and what is no journal."""

import os
import re
from pathlib import Path

import pytest
from tests.storage.journals import (
    ENTRY_HEAD,
    HEAD,
    LARGEST,
    NAMES,
    append,
    batches,
    enter,
    reopened,
)

from headrace.storage.errors import StoreError
from headrace.storage.journal.journal import SMALLEST, Journal, trouble


@pytest.mark.parametrize("before", [0, 2])
def test_an_entry_that_a_kill_cut_off_is_none(journal_path: Path, journal: Journal, before: int) -> None:
    """The batch is copied first, then the head: wherever the copy ends, those before are found and nothing else is."""
    earlier = [append(b"%d" % number) for number in range(before)]
    enter(journal, *earlier)
    journal.close()
    start = HEAD + sum(ENTRY_HEAD + NAMES + len(each.batch) + 7 & ~7 for each in earlier)
    blank = journal_path.read_bytes()
    # As if an entry of an earlier lap had lain there: its remains show through where the copy has not come yet.
    for left_over in (bytes(4_000), os.urandom(4_000)):
        image = bytearray(blank)
        image[start : start + len(left_over)] = left_over
        journal_path.write_bytes(image)
        opened = Journal.open(journal_path, SMALLEST)
        opened.renewed(SMALLEST)
        enter(opened, *earlier)
        assert enter(opened, append(b"torn", 300)) == [2 * before + 1]
        opened.close()
        whole = journal_path.read_bytes()
        image[:start] = whole[:start]
        body = start + ENTRY_HEAD + NAMES
        order = [*range(body, body + 300), *range(start, body)]
        assert batches(reopened(journal_path)) == [bytes(each.batch) for each in earlier] + [
            bytes(append(b"torn", 300).batch)
        ]
        for kept in range(len(order)):
            for place in order:
                image[place] = left_over[place - start]
            for place in order[:kept]:
                image[place] = whole[place]
            if image == whole:
                continue  # the rest was the same by chance
            with journal_path.open("r+b") as file:
                file.seek(start)
                file.write(image[start : start + 400])
            assert batches(reopened(journal_path)) == [bytes(each.batch) for each in earlier], kept


@pytest.mark.parametrize("at", [0, 4, 8, 20, 50, ENTRY_HEAD, ENTRY_HEAD + 40, 140])
def test_an_entry_with_a_wrong_byte_is_left_out(journal_path: Path, journal: Journal, at: int) -> None:
    enter(journal, append(b"a"), append(b"b"), append(b"c"))
    place = HEAD + (ENTRY_HEAD + NAMES + 100 + 7 & ~7) + at
    with journal_path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))
    assert [entry.number for entry in reopened(journal_path)] == [1, 3]


def test_an_entry_of_another_file_is_none_of_this_one(journal_path: Path, journal: Journal) -> None:
    """So nothing that a client knows how to write passes for one."""
    other_path = journal_path.with_name("other")
    other = Journal.open(other_path, SMALLEST).renewed(SMALLEST)
    enter(other, append(b"a"))
    other.close()
    enter(journal, append(b"b"))
    assert len(reopened(journal_path)) == 1
    with journal_path.open("r+b") as file:
        file.seek(HEAD)
        file.write(other_path.read_bytes()[HEAD : HEAD + 4096])
    assert reopened(journal_path) == []


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
    journal_path: Path, journal: Journal, part: str, wrong: tuple[int, ...], found: list[int], damaged: list[range]
) -> None:
    """They were acknowledged: to pass them over would be to lose them without a word. Numbers have no gaps."""
    journal.kept(enter(journal, append())[-1])
    enter(journal, *(append(b"%d" % number) for number in range(2, 7)))
    journal.close()
    content = bytearray(journal_path.read_bytes())
    for number in wrong:
        content[content.index(b"%d....." % number) - (90 if part == "head" else 0)] ^= 0x80
    journal_path.write_bytes(content)
    if part == "head" and 6 in wrong:
        damaged = []  # a kill leaves the newest one like that
    opened = Journal.open(journal_path, SMALLEST)
    assert [entry.number for entry in opened.found().entries] == found
    assert opened.found().damaged == damaged
    opened.renewed(SMALLEST)
    assert opened.found() == ([], [])
    opened.close()


def test_a_head_older_than_what_is_behind_it_makes_no_damage(journal_path: Path, journal: Journal) -> None:
    """A loss of power: the disk had the halves of later laps, and of the head what it was before them."""
    third = append(size=LARGEST // 3 - 100)
    old = journal_path.read_bytes()[:HEAD]
    for _ in range(4):
        journal.kept(enter(journal, third, third, third)[-1])
    journal.close()
    journal_path.write_bytes(old + journal_path.read_bytes()[HEAD:])
    opened = Journal.open(journal_path, SMALLEST)
    found = opened.found()
    opened.close()
    assert found.damaged == []
    assert [entry.number for entry in found.entries] == [7, 8, 9, 10, 11, 12]


def test_a_journal_that_a_kill_cut_off_as_it_was_made_is_made_again(journal_path: Path) -> None:
    for found in (b"", bytes(100), bytes(HEAD), bytes(HEAD + SMALLEST), bytes(16) + b"\1" * 8 + bytes(HEAD)):
        journal_path.write_bytes(found)
        opened = Journal.open(journal_path, SMALLEST).renewed(SMALLEST)
        assert enter(opened, append()) == [1]
        opened.close()
        assert len(reopened(journal_path)) == 1
        journal_path.unlink()


def test_no_journal(journal_path: Path, journal: Journal) -> None:
    """Another version's, cut off, grown, or another file: whatever it holds must not be thrown away."""
    enter(journal, append())
    whole = journal_path.read_bytes()
    assert trouble(journal_path) is None
    for found, reason in (
        (b"HRJOURN1" + whole[8:], "journal is of another version of Headrace (journal 1, this one has 2), and"),
        (whole[:-4096], "journal is damaged, or no journal: what it holds may be missing"),
        (whole + bytes(4096), "journal is damaged, or no journal: "),
        (whole[:16] + b"\7" + whole[17:], "journal is damaged, or no journal: "),
        (b"#" * len(whole), "journal is damaged, or no journal: "),
    ):
        journal_path.write_bytes(found)
        with pytest.raises(StoreError, match=re.escape(reason)) as refused:
            Journal.open(journal_path, SMALLEST)
        assert str(refused.value) == f"{journal_path} {trouble(journal_path)}"
        assert journal_path.read_bytes() == found
    journal_path.write_bytes(whole)
