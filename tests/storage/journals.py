"""A journal's file of the smallest size, what is entered in it, and what a start finds there."""

from pathlib import Path

from headrace.records.build import build
from headrace.storage.journal.journal import SMALLEST, Entry, Journal
from headrace.topics.model import Append

HEAD, HALF = 4096, SMALLEST // 2
ENTRY_HEAD = 62
"""Bytes of an entry before its names, by the layout that `headrace.storage.journal.journal` describes."""
STREAM, LOG = "headrace:t:0", b"id"
NAMES = len(STREAM) + len(LOG)
LARGEST = HALF - ENTRY_HEAD - NAMES
"""Bytes of the batch that fills a half."""


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
    return Append(batch, **{"span": 1, "max_timestamp": 5, **fields})  # type: ignore[arg-type]


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
