"""Markers are Kafka's control batches, byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.batch import peek
from headrace.records.build import build
from headrace.records.errors import CorruptBatch
from headrace.records.fallback.header import crc32c
from headrace.records.markers import MARKER_SIZE, NUMBERS, Marker, build_marker, is_later, parse_marker
from headrace.records.walk import records

MARKERS = st.builds(
    Marker,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.booleans(),
    st.integers(-1, NUMBERS - 1),
)


@given(MARKERS, st.integers(0, 2**50))
def test_a_marker_is_read_as_it_was_built(marker: Marker, timestamp: int) -> None:
    batch = build_marker(marker, timestamp)
    assert len(batch) == MARKER_SIZE
    assert parse_marker(batch) == parse_marker(bytes(batch) + b"more") == marker
    header = peek(batch)
    assert (header.is_control, header.is_transactional, header.codec, header.span) == (True, True, 0, 1)
    assert (header.base_sequence, header.count, header.max_timestamp) == (-1, 1, timestamp)
    assert header.crc == crc32c(bytes(batch[21:]))


def test_the_record_is_that_of_kafka() -> None:
    """Taken from the format's definition: key (0, 1) for COMMIT, value (0, coordinator epoch)."""
    batch = build_marker(Marker(7, 2, commit=True, number=5), 1_000)
    as_data = bytearray(batch)
    as_data[22] &= ~0x20
    [record] = records(as_data, 40)
    assert (record.offset, record.timestamp, record.headers) == (40, 1_000, ())
    assert record.key == b"\x00\x00\x00\x01"
    assert record.value == b"\x00\x00\x00\x00\x00\x05"
    assert records(batch, 40) == []


def test_other_batches_are_no_markers() -> None:
    data = build([(b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x05", 0, ())], transactional=True, producer_id=7)
    with pytest.raises(CorruptBatch):
        parse_marker(data)
    marker = build_marker(Marker(7, 2, commit=True, number=5), 1_000)
    with pytest.raises(CorruptBatch):
        parse_marker(marker[: MARKER_SIZE - 5])
    marker[69] = 2
    with pytest.raises(CorruptBatch):
        parse_marker(marker)


@given(st.integers(0, NUMBERS - 1), st.integers(0, NUMBERS // 2 - 1))
def test_numbers_wrap(number: int, ahead: int) -> None:
    later = (number + ahead) % NUMBERS
    assert is_later(later, number) == (ahead > 0)
    assert not is_later(number, later)
