"""Records one by one, and the timestamp searches that ListOffsets needs."""

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace.records.batch import log_append_time
from headrace.records.build import build
from headrace.records.errors import BatchTooLarge, CorruptBatch, InvalidBatch, UnknownCodec
from headrace.records.walk import Record, Some, find_timestamp, max_timestamp, records, some

pytestmark = pytest.mark.usefixtures("implementation")

TIMES = [100, 300, 200, 300, 250]
BATCH = build([(None, b"%d" % at, time, ()) for at, time in enumerate(TIMES)], codec=4)


def with_section(section: bytes, count: int) -> bytearray:
    """An uncompressed batch with these bytes as its records."""
    batch = build([(None, None, 0, ())])[:61] + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return batch


@pytest.mark.parametrize("codec", range(5))
def test_records_written_by_aiokafka(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, 5, b"key", b"value", [("name", b"content"), ("null", None)])
    builder.append(1, 4, None, b"", [])
    builder.append(2, 2**40, b"", None, [])

    assert records(bytes(builder.build()), 1_000) == [
        Record(1_000, 5, b"key", b"value", (("name", b"content"), ("null", None))),
        Record(1_001, 4, None, b"", ()),
        Record(1_002, 2**40, b"", None, ()),
    ]


def test_offsets_count_from_the_stored_offset_and_not_from_the_base_offset() -> None:
    assert [record.offset for record in records(build([(b"k", b"v", 1, ())] * 2, base_offset=7), 2**53 - 9)] == [
        2**53 - 9,
        2**53 - 8,
    ]


def test_log_append_time_counts_for_every_record() -> None:
    batch = bytearray(BATCH)
    log_append_time(batch, 999)
    assert {record.timestamp for record in records(batch, 0)} == {999}
    assert find_timestamp(batch, 40, 500) == (40, 999)
    assert max_timestamp(batch, 40) == (40, 999)


@pytest.mark.parametrize(
    ("timestamp", "found"), [(0, (50, 100)), (100, (50, 100)), (101, (51, 300)), (300, (51, 300)), (301, None)]
)
def test_find_timestamp(timestamp: int, found: tuple[int, int] | None) -> None:
    assert find_timestamp(BATCH, 50, timestamp) == found


def test_the_first_of_equal_largest_timestamps() -> None:
    assert max_timestamp(BATCH, 50) == (51, 300)


def test_records_without_timestamps() -> None:
    batch = build([(b"k", b"v", -1, ())] * 2)
    assert [record.timestamp for record in records(batch, 0)] == [-1, -1]
    assert find_timestamp(batch, 0, 0) is None
    assert max_timestamp(batch, 0) == (0, -1)


def test_a_control_batch_has_no_records_for_readers() -> None:
    batch = bytearray(BATCH)
    struct.pack_into(">h", batch, 21, 0x20)
    assert records(batch, 0) == []
    assert max_timestamp(batch, 0) == (0, 300), "as in Kafka"


def test_timestamps_wrap_as_javas_do() -> None:
    batch = build([(None, None, 2**63 - 1, ()), (None, None, -(2**63), ())])
    assert [record.timestamp for record in records(batch, 0)] == [2**63 - 1, -(2**63)]


def test_a_bomb_is_not_opened() -> None:
    batch = build([(None, bytes(1_000_000), 1, ())], codec=4)
    with pytest.raises(BatchTooLarge):
        records(batch, 0, limit=100_000)


@pytest.mark.parametrize(
    ("section", "count"),
    [
        (b"", 1),  # no record where there should be one
        (b"\x0c\x00\x00\x00\x01\x01\x00", 2),  # one too few
        (b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 1),  # one too many
        (b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2),  # the same offset twice
        (b"\x0c\x00\x00\x02\x01\x01\x00", 1),  # an offset beyond the batch's last
        (b"\x0c\x00\x00\x01\x01\x01\x00", 1),  # an offset before its first
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1),  # a byte left over in the record
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1),  # a byte left over after it
        (b"\x0c\x00\x00\x00\x7e\x01\x00", 1),  # a key longer than the record
        (b"\x0c\x00\x00\x00\x01\x7e\x00", 1),  # a value longer than the record
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1),  # a negative number of headers
        (b"\x0c\x00\x00\x00\x01\x01\x02", 1),  # a header that is not there
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1),  # a header without name
        (b"\x0c\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1),  # a varint without end
        (b"\xff\xff\xff\xff\x0f\x00", 1),  # a record of negative length
        (b"\xfe\xff\xff\xff\x0f\x00", 1),  # a record of 2 GiB
        (b"\x0c\x00\x00\x00\x01\x01\x00", 2**31 - 1),  # a count that would take all memory
        (b"\x00", 1),  # an empty record
    ],
)
def test_records_that_cannot_be_read(section: bytes, count: int) -> None:
    with pytest.raises(CorruptBatch):
        records(with_section(section, count), 0)


def test_batches_that_cannot_be_opened() -> None:
    batch = bytearray(BATCH)
    struct.pack_into(">h", batch, 21, 7)
    with pytest.raises(UnknownCodec):
        records(batch, 0)
    struct.pack_into(">h", batch, 21, 1)
    with pytest.raises(CorruptBatch):
        records(batch, 0)
    with pytest.raises(InvalidBatch):
        records(BATCH + BATCH, 0)


KEYED = build([(key, b"v" * 10, 5, (("h", None),) * 3) for key in (b"ab", None, b"aab", b"", b"b", b"cab")])


def few(batch: bytearray, first_offset: int = 0, part: bytes = b"", **given: int) -> Some:
    asked = {"most": 100, "most_bytes": 1 << 20, "most_headers": 100, "limit": 1 << 20, **given}
    return some(batch, 50, first_offset, part, **asked)


def offsets(found: Some) -> list[int]:
    return [record.offset for record, _ in found.records]


def test_a_few_records_are_those_of_all() -> None:
    found = few(KEYED)
    assert [record for record, _ in found.records] == records(KEYED, 50)
    assert found.following == 56
    assert found.decompressed == len(KEYED) - 61


@pytest.mark.parametrize(
    ("part", "wanted"),
    [(b"a", [50, 52, 55]), (b"ab", [50, 52, 55]), (b"b", [50, 52, 54, 55]), (b"aab", [52]), (b"ba", []), (b"abc", [])],
)
def test_a_few_records_by_what_their_keys_have(part: bytes, wanted: list[int]) -> None:
    assert offsets(few(KEYED, part=part)) == wanted
    assert offsets(few(KEYED, 53, part)) == [offset for offset in wanted if offset >= 53]


def test_records_are_limited_and_return_the_offset_to_continue_at() -> None:
    assert (offsets(found := few(KEYED, 51, most=2)), found.following) == ([51, 52], 53)
    assert (offsets(found := few(KEYED, 51, b"ab", most=1)), found.following) == ([52], 55)
    assert (offsets(found := few(KEYED, most_bytes=16)), found.following) == ([50, 51], 52)
    assert (offsets(found := few(KEYED, most_bytes=0)), found.following) == ([50], 51)
    assert (offsets(found := few(KEYED, most=0)), found.following) == ([], 50)
    assert (offsets(found := few(KEYED, 99)), found.following) == ([], 56)


def test_of_many_headers_a_few_are_given_and_all_are_counted() -> None:
    assert {(len(record.headers), count) for record, count in few(KEYED, most_headers=2).records} == {(2, 3)}


def test_a_few_records_of_a_batch_that_cannot_be_read() -> None:
    with pytest.raises(CorruptBatch):
        few(with_section(b"\x02\x00\x00", 3))
    with pytest.raises(BatchTooLarge):
        few(build([(None, bytes(1000), 1, ())], codec=4), limit=100)
    # What lies behind the last one that is wanted is not looked at.
    section = bytes(build([(b"k", b"v", 1, ())] * 2)[61:]) + b"\xff" * 9
    assert offsets(few(with_section(section, 3), most=1)) == [50]
