"""Offsets and entry ids of native topics: stateless both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.layout.native import (
    LAST_ID,
    State,
    StreamInfo,
    behind,
    extent,
    id_before,
    id_of,
    last_before_most,
    offset_after,
    offset_at,
    parts_of,
)

BITS = st.integers(0, 12)
OFFSETS = st.integers(0, 2**53 - 1)


@pytest.mark.parametrize(
    ("offset", "entry_id"),
    [
        (1234567890123 << 10 | 5, "1234567890123-5"),
        (100, "0-100"),
        (999_999_999, "976562-511"),
        (1_234_567_890_123, "1205632705-203"),
    ],
)
def test_examples(offset: int, entry_id: str) -> None:
    assert id_of(offset) == entry_id
    assert offset_at(entry_id.encode()) == offset


@given(OFFSETS, BITS)
def test_there_and_back(offset: int, bits: int) -> None:
    entry_id = id_of(offset, bits).encode()
    assert offset_after(entry_id, bits) == offset + 1 or offset == 0
    assert offset_at(entry_id, bits) == offset


@given(OFFSETS, OFFSETS, BITS)
def test_order_is_kept(one: int, other: int, bits: int) -> None:
    assert (one < other) == (parts_of(id_of(one, bits).encode()) < parts_of(id_of(other, bits).encode()))


@given(st.integers(1, 2**53 - 1), BITS)
def test_just_before_an_offset_lies_no_other_offset(offset: int, bits: int) -> None:
    before = parts_of(id_before(offset, bits).encode())
    assert parts_of(id_of(offset - 1, bits).encode()) <= before < parts_of(id_of(offset, bits).encode())
    assert offset_after(id_before(offset, bits).encode(), bits) == offset or offset == 1


def test_no_entry_id_precedes_the_first_offset() -> None:
    assert id_before(0) == "0-0"
    assert offset_after(b"0-0") == 0


def test_a_sequence_too_large_belongs_between_its_millisecond_and_the_next() -> None:
    assert offset_at(b"5-5000") == 5 << 10 | 1023
    assert offset_after(b"5-5000") == 6 << 10
    assert offset_at(b"5-1500", 12) == 5 << 12 | 1500


@pytest.mark.parametrize("entry_id", [b"", b"5", b"-1-0", b"5-0-0", b"a-b", b"5-"])
def test_invalid_entry_ids(entry_id: bytes) -> None:
    with pytest.raises(ValueError, match="no entry id"):
        offset_at(entry_id)


def test_an_untouched_stream_starts_at_0_and_ends_after_its_last_id() -> None:
    info = StreamInfo(length=3, last_id=b"7-2", first_id=b"5-0", added=3)
    assert extent(info, State(), 10) == (0, (7 << 10) + 3)


def test_a_key_that_is_not_there_yet() -> None:
    assert extent(StreamInfo(), State(), 10) == (0, 0)


def test_what_we_trimmed_is_known_to_the_offset() -> None:
    info = StreamInfo(length=2, last_id=b"7-2", first_id=b"7-1", added=5)
    assert extent(info, State(log_start=6 << 10, removed=3), 10) == (6 << 10, (7 << 10) + 3)


def test_after_a_foreign_trim_the_log_starts_with_the_rest() -> None:
    info = StreamInfo(length=2, last_id=b"7-2", first_id=b"7-1", added=6)
    assert extent(info, State(log_start=6 << 10, removed=3), 10) == ((7 << 10) + 1, (7 << 10) + 3)


def test_everything_trimmed() -> None:
    info = StreamInfo(length=0, last_id=b"7-2", first_id=b"0-0", added=6)
    assert extent(info, State(), 10) == ((7 << 10) + 3, (7 << 10) + 3)


def test_a_stream_that_was_lost_ends_where_it_was_known_to_end() -> None:
    assert extent(StreamInfo(), State(next_offset=900, log_start=100), 10) == (100, 900)


@pytest.mark.parametrize("bits", [0, 10, 12])
def test_an_id_whose_time_no_offset_has_leaves_offsets_that_there_are(bits: int) -> None:
    for entry_id in (LAST_ID.encode(), b"18446744073709551615-0", b"%d-0" % (1 << (62 - bits))):
        assert offset_after(entry_id, bits) == 1 << 62
        assert offset_at(entry_id, bits) == (1 << 62) - 1
    assert behind(1 << 62, bits) == LAST_ID
    assert parts_of(last_before_most(bits).encode())[0] == (1 << (62 - bits)) - 1
    assert offset_after(last_before_most(bits).encode(), bits) == 1 << 62
