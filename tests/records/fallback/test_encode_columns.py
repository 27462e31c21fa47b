"""Batches made of Arrow columns: the same in C and in Python, and read back as they were written."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.batch import peek
from headrace.records.build import ArrowRows, build_columns, build_rows
from headrace.records.fallback import encode as fallback_encode
from headrace.records.fallback.encode import ArrowColumn
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
        section, row_c = accelerator.encode_columns(keys, values, row, len(rows), most)
        assert (section, row_c) == fallback_encode.encode_columns(keys, values, row, len(rows), most)
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


@pytest.mark.parametrize("encode", [fallback_encode.encode_columns, accelerator.encode_columns])
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


Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def rows_of(rows: list[Row], first: int = 0) -> ArrowRows:
    """Columns of (offset, ms, key, value, headers); before row 0 there are others, as in a slice."""
    before: list[Row] = [(-1, 0, b"before", None, (("before", b""),))] * first
    whole = before + rows
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    pairs = [None if not row[4] else [{"key": name, "value": content} for name, content in row[4]] for row in whole]
    lists = pa.array(pairs, kind)
    validity, edges = lists.buffers()[:2]
    inner = [lists.values.field(index) for index in (0, 1)]
    names, contents = ((*child.buffers(), child.offset) for child in inner)
    empty = (None, b"\0\0\0\0", b"", 0)
    offsets = pa.array([row[0] for row in whole], pa.int64()).buffers()[1]
    times = pa.array([row[1] * 1000 for row in whole], pa.int64()).buffers()[1]
    return ArrowRows(
        column([row[2] for row in rows], first),
        column([row[3] for row in rows], first),
        (validity, edges, first, names if len(inner[0]) else empty, contents if len(inner[1]) else empty),
        (offsets, first),
        (times, first),
    )


headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
places = st.lists(st.integers(0, 2**40), min_size=1, max_size=20, unique=True).map(sorted)


@given(places, st.data(), st.integers(1, 400), st.integers(0, 9))
def test_rows_keep_their_places_in_both_implementations(
    offsets: list[int], data: st.DataObject, most: int, first: int
) -> None:
    content = st.tuples(st.integers(-1, 2**41), st.none() | st.binary(max_size=90), st.none() | st.binary(), headers)
    rows: list[Row] = [(offset, *data.draw(content)) for offset in offsets]
    columns = rows_of(rows, first)
    found, following = [], 0
    while following < len(rows):
        section = accelerator.encode_rows(*columns, following, len(rows), most)
        assert tuple(section) == tuple(fallback_encode.encode_rows(*columns, following, len(rows), most))
        assert section[1] > following
        following = section[1]
    start = 0
    while start < len(rows):
        stop, batch = build_rows(columns, start, len(rows), max_bytes=most)
        header = peek(batch)
        assert (header.base_offset, header.base_offset + header.last_offset_delta) == (
            offsets[start],
            offsets[stop - 1],
        )
        assert header.max_timestamp == max(row[1] for row in rows[start:stop])
        found += records(batch, header.base_offset)
        start = stop
    assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found] == rows


def test_server_times_are_marked() -> None:
    _, batch = build_rows(rows_of([(7, 5, None, b"v", ())]), 0, 1, append_time=True, max_bytes=100)
    [record] = records(batch, 7)
    assert (record.offset, record.timestamp, bool(batch[22] & 8)) == (7, 5, True)


@pytest.mark.parametrize("encode", [fallback_encode.encode_rows, accelerator.encode_rows])
def test_rows_that_lie_are_refused(encode: object) -> None:
    assert callable(encode)
    good = rows_of([(4, 0, None, b"v", (("h", b""),)), (5, 0, None, None, ())])
    backwards = rows_of([(4, 0, None, None, ()), (4, 0, None, None, ())])
    nameless = (None, b"\0\0\0\0\1\0\0\0", 0, None, None)
    short = (b"\0" * 8, 0)
    for arguments in (
        (*backwards, 0, 2, 10),
        (*good, 0, 3, 10),
        (*good[:2], nameless, *good[3:], 0, 1, 10),
        (*good[:3], short, good[4], 0, 2, 10),
        (*good[:4], short, 0, 2, 10),
    ):
        with pytest.raises(ValueError, match=r"rows|go up|name"):
            encode(*arguments)
