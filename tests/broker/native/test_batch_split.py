"""A batch in pieces: all of it, from anywhere, and no record read twice."""

from itertools import pairwise
from typing import Any

import pytest

from headrace.broker.native.batch_split import MOST_RECORDS, pieces
from headrace.records import accelerator
from headrace.records.build import build
from headrace.records.compression import ZSTD
from headrace.records.walk import records

COUNT = 5 * MOST_RECORDS + 7
BATCH = build(((b"%d" % number, b"v", number, ()) for number in range(COUNT)), codec=ZSTD)


@pytest.mark.parametrize("first", [0, 50, 100, 50 + MOST_RECORDS, 50 + COUNT - 1, 50 + COUNT])
def test_pieces_are_all_records_from_an_offset_on(first: int) -> None:
    found = list(pieces(BATCH, 50, first))
    offsets = list(range(max(50, first), 50 + COUNT))
    assert [offset for each in found for offset in each.offsets] == offsets
    assert [record.timestamp for each in found for record in records(each.batch, 0)] == [at - 50 for at in offsets]
    assert all(len(each.offsets) <= MOST_RECORDS for each in found)


@pytest.mark.skipif(not accelerator.available, reason="the twin of the C code reads all again")
def test_no_record_is_read_for_more_than_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of four million took 27 s."""
    some, left = accelerator.some, []

    def note(kind: Any, section: memoryview, *asked: Any) -> Any:
        left.append(len(section))
        return some(kind, section, *asked)

    monkeypatch.setattr(accelerator, "some", note)
    assert len(list(pieces(BATCH, 0, 0))) == 6
    read = [before - after for before, after in pairwise(left)]
    assert len(left) == 6
    assert min(read) > left[0] // 7
