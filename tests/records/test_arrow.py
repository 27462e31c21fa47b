"""Batches as Arrow columns: types, values, ranges and sizes, with and without the C extension."""

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headrace.records import accelerator
from headrace.records.arrow import decode, schema
from headrace.records.batch import log_append_time
from headrace.records.build import build
from headrace.records.errors import BatchTooLarge, CorruptBatch
from headrace.records.fallback.columns import PureColumns

pytestmark = pytest.mark.usefixtures("implementation")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fields = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


def numbered(first: int, count: int, size: int = 10) -> list[Fields]:
    return [(b"%d" % at, bytes(size), 1_000 + at, ()) for at in range(first, first + count)]


def decoded(batches: list[tuple[int, Any]], first: int = 0, end: int = 2**60, **options: Any) -> list[pa.RecordBatch]:
    options.setdefault("topic", "flights")
    found = list(decode(batches, partition=3, first_offset=first, end_offset=end, **options))
    for batch in found:
        batch.validate(full=True)
        assert batch.num_rows > 0
    return found


def offsets(found: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("codec", range(5))
def test_every_column(codec: int) -> None:
    records: list[Fields] = [
        (b"k", b"value", 1_700_000_000_123, (("name", b"content"), ("null", None))),
        (None, b"", 5, ()),
        (b"", None, -1, (("ü", b""),)),
    ]
    found = decoded([(2**52, build(records, codec=codec))], include_headers=True)

    assert len(found) == 1
    assert found[0].schema == schema(include_headers=True)
    assert found[0].to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "flights",
            "partition": 3,
            "offset": 2**52 + at,
            "timestamp": EPOCH + timedelta(milliseconds=timestamp),
            "timestampType": 0,
            "headers": [{"key": name, "value": content} for name, content in headers] or None,
        }
        for at, (key, value, timestamp, headers) in enumerate(records)
    ]


def test_headers_are_a_column_only_when_asked_for() -> None:
    found = decoded([(0, build([(b"k", b"v", 1, (("h", b"x"),))]))])
    assert found[0].schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_log_append_time() -> None:
    batch = build(numbered(0, 3))
    log_append_time(batch, 77_000)
    (found,) = decoded([(0, batch), (3, build(numbered(0, 1)))])
    assert found.column("timestampType").to_pylist() == [1, 1, 1, 0]
    assert set(found.column("timestamp").to_pylist()[:3]) == {EPOCH + timedelta(seconds=77)}


@pytest.mark.parametrize(("first", "end"), [(0, 30), (5, 25), (10, 20), (9, 10), (19, 20), (29, 40), (30, 40), (7, 7)])
def test_only_the_offsets_asked_for(first: int, end: int) -> None:
    batches = [(0, build(numbered(0, 10))), (10, build(numbered(10, 10), codec=3)), (20, build(numbered(20, 10)))]
    found = decoded(batches, first, end)
    assert offsets(found) == list(range(first, min(end, 30)))
    assert [key for batch in found for key in batch.column("key").to_pylist()] == [
        b"%d" % at for at in range(first, min(end, 30))
    ]


def test_nothing_is_read_after_the_end() -> None:
    def batches() -> Any:
        yield 0, build(numbered(0, 10))
        yield 10, b"never looked at"
        raise AssertionError

    with pytest.raises(CorruptBatch):
        list(decode(batches(), topic="t", partition=0, first_offset=0, end_offset=11))
    assert decoded([], 0, 0) == []


def test_small_batches_are_put_together_and_large_ones_cut() -> None:
    batches = [(at * 7, build(numbered(at * 7, 7))) for at in range(10)]
    found = decoded(batches, max_rows=20)
    assert [batch.num_rows for batch in found] == [20, 20, 20, 10]
    assert offsets(found) == list(range(70))
    assert [batch.num_rows for batch in decoded([(0, build(numbered(0, 25)))], max_rows=10)] == [10, 10, 5]


def test_bytes_are_bounded_but_a_large_record_goes_alone() -> None:
    batches = [(0, build([*numbered(0, 2, 100), *numbered(2, 1, 5_000), *numbered(3, 2, 100)]))]
    assert [batch.num_rows for batch in decoded(batches, max_bytes=300)] == [2, 1, 2]
    assert [batch.num_rows for batch in decoded(batches, max_bytes=1)] == [1] * 5
    headers = [(None, None, 0, (("name", bytes(100)),))] * 4
    assert len(decoded([(0, build(headers))], max_bytes=300, include_headers=True)) == 2
    assert len(decoded([(0, build(headers))], max_bytes=300)) == 1


def test_what_was_handed_out_stays_when_the_decoder_goes_on() -> None:
    found = decoded([(0, build(numbered(0, 1_000), codec=4))], max_rows=1)
    assert [batch.column("key").to_pylist() for batch in found] == [[b"%d" % at] for at in range(1_000)]


def test_large_buffers_are_reused_only_when_released() -> None:
    def value(at: int) -> bytes:
        return bytes([at % 256]) * (5_000 + at % 7)

    batches = [
        (base, build([(None, value(at), 0, ()) for at in range(base, base + 10)])) for base in range(0, 2_000, 10)
    ]
    held = []
    for number, batch in enumerate(
        decode(batches, topic="t", partition=0, first_offset=0, end_offset=2_000, max_bytes=150_000)
    ):
        assert batch.column("value").to_pylist() == [value(at) for at in batch.column("offset").to_pylist()]
        if number % 3:
            held.append(batch)
    assert len(held) > 30
    for batch in held:
        batch.validate(full=True)
        assert batch.column("value").to_pylist() == [value(at) for at in batch.column("offset").to_pylist()]


def test_control_batches_have_no_rows() -> None:
    control = build(numbered(0, 1))
    struct.pack_into(">h", control, 21, 0x20)
    assert offsets(decoded([(0, build(numbered(0, 2))), (2, control), (3, build(numbered(3, 2)))])) == [0, 1, 3, 4]


def test_gaps_that_compaction_leaves() -> None:
    batch = build(numbered(0, 2))
    struct.pack_into(">i", batch, 23, 9)
    assert offsets(decoded([(0, batch), (10, build(numbered(10, 1)))])) == [0, 1, 10]


def test_timestamps_beyond_what_microseconds_hold() -> None:
    (found,) = decoded([(0, build([(None, None, 2**62, ()), (None, None, -(2**62), ())]))])
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63)]


def test_broken_records_are_an_error_not_rows() -> None:
    batch = build(numbered(0, 5))
    batch[61] ^= 0x40
    with pytest.raises(CorruptBatch):
        decoded([(0, batch)])
    bomb = build([(None, bytes(1_000_000), 0, ())], codec=4)
    with pytest.raises(BatchTooLarge):
        decoded([(0, bomb)], limit=10_000)


def test_header_names_that_are_not_text(implementation: str) -> None:
    batch = build([(None, None, 0, (("??", b"v"),))])
    at = batch.index(b"??")
    batch[at : at + 2] = b"a\xff"
    if implementation == "pure":  # aiokafka gives up on such a record
        with pytest.raises(CorruptBatch):
            decoded([(0, batch)], include_headers=True)
        return
    (found,) = decoded([(0, batch)], include_headers=True)
    assert found.column("headers").to_pylist() == [[{"key": "a\ufffd", "value": b"v"}]]


def test_limits_that_make_no_sense_are_refused(implementation: str) -> None:
    for rows, size in ((0, 100), (100, 0), (-1, 100), (2**25, 100), (100, 2**31)):
        with pytest.raises(ValueError, match="rows"):
            accelerator.open_columns(rows, size, False)


def test_columns_without_a_batch_are_done(implementation: str) -> None:
    columns = accelerator.open_columns(10, 100, True)
    assert columns.fill()
    assert columns.rows == 0
    assert isinstance(columns, PureColumns) == (implementation == "pure")
