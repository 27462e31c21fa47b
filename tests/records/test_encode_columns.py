"""Batches made of Arrow columns: the same in C and in Python, and read back as they were written."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import compiled, pure_encode
from headrace.records.build import build_columns
from headrace.records.pure_encode import ArrowColumn
from headrace.records.walk import records

cells = st.lists(st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=300)), min_size=1)


def column(values: list[bytes | None], first: int = 0) -> ArrowColumn:
    """The buffers of an Arrow array whose row `first` is the first value."""
    array = pa.array([b"before"] * first + values, pa.binary())
    validity, offsets, data = array.buffers()
    return validity, offsets, data if data is not None else b"", first


@given(cells, st.integers(1, 2_000), st.integers(0, 9))
def test_both_implementations_write_the_same(
    rows: list[tuple[bytes | None, bytes | None]], most: int, first: int
) -> None:
    keys, values = column([key for key, _ in rows], first), column([value for _, value in rows])
    row = 0
    while row < len(rows):
        section, row_c = compiled.encode_columns(keys, values, row, len(rows), most)
        assert (section, row_c) == pure_encode.encode_columns(keys, values, row, len(rows), most)
        assert row_c == row + 1 or len(section) <= most
        row = row_c


@pytest.mark.usefixtures("implementation")
def test_what_is_written_is_read_back() -> None:
    keys: list[bytes | None] = [None if n % 7 == 0 else b"k%d" % n for n in range(500)]
    values: list[bytes | None] = [None if n % 11 == 0 else b"v" * n for n in range(500)]
    batches = list(build_columns(column(keys, 3), column(values), 500, 77, codec=4, max_bytes=20_000))
    assert len(batches) > 5
    found, offset = [], 0
    for batch in batches:
        taken = records(batch, offset)
        found += taken
        offset += len(taken)
    assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (n, 77, key, value, ()) for n, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    [batch] = build_columns(None, column([b"only"]), 1, 5, max_bytes=1)
    assert [(one.key, one.value) for one in records(batch, 0)] == [(None, b"only")]


@pytest.mark.parametrize("encode", [pure_encode.encode_columns, compiled.encode_columns])
def test_columns_that_lie_are_refused(encode: object) -> None:
    assert callable(encode)
    good = column([b"a", b"b"])
    for arguments in (
        (None, good, 0, 3, 10),
        (None, good, 1, 1, 10),
        (None, good, 0, 2, 0),
        (None, (None, b"\x00\x00\x00\x00\xff\x00\x00\x00", b"short", 0), 0, 1, 10),
        (None, (None, b"\x00\x00\x00\x00\x01\x00\x00\x00", b"x", -1), 0, 1, 10),
        ((b"", good[1], good[2], 0), None, 0, 2, 10),
    ):
        with pytest.raises(ValueError, match=r"rows|room|outside"):
            encode(*arguments)
