"""The header check: what is let in, and which error each broken batch gets. With and without the C extension."""

import struct
from collections.abc import Callable

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace.records import accelerator
from headrace.records.batch import BatchHeader, check, check_stored, log_append_time, peek, read_header
from headrace.records.build import build
from headrace.records.errors import BatchError, CorruptBatch, InvalidBatch, UnknownCodec, UnsupportedMagic
from headrace.records.fallback.header import crc32c
from headrace.records.markers import Marker, build_marker

pytestmark = pytest.mark.usefixtures("implementation")

RECORDS = [(b"key-%d" % number, b"value", 1_000 + number, ()) for number in range(3)]


def sealed(batch: bytearray) -> bytearray:
    """The batch with the CRC that belongs to its bytes."""
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def changed(position: int, layout: str, value: int) -> bytearray:
    """A valid batch but for one field."""
    batch = build(RECORDS)
    struct.pack_into(layout, batch, position, value)
    return sealed(batch)


def from_producer(producer_id: int, epoch: int, sequence: int) -> bytearray:
    return build(RECORDS, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_every_field_is_read_from_a_batch_of_another_implementation() -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=3,
        is_transactional=1,
        producer_id=2**40,
        producer_epoch=7,
        base_sequence=2**31 - 1,
        batch_size=1 << 20,
    )
    for number in range(5):
        builder.append(number, 1_700_000_000_000 - number, b"key", b"value" * 20, [])
    batch = bytes(builder.build())

    header = check(batch)

    assert header == BatchHeader(
        base_offset=0,
        batch_length=len(batch) - 12,
        leader_epoch=header.leader_epoch,
        magic=2,
        crc=crc32c(batch[21:]),
        attributes=0x13,
        last_offset_delta=4,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000,
        producer_id=2**40,
        producer_epoch=7,
        base_sequence=2**31 - 1,
        count=5,
    )
    assert (header.codec, header.timestamp_type, header.span, header.size) == (3, 0, 5, len(batch))
    assert header.is_transactional
    assert not header.is_control


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda batch: memoryview(bytes(9) + batch)[9:]])
def test_any_buffer_is_checked(kind: Callable[[bytearray], bytes]) -> None:
    assert check(kind(build(RECORDS))).count == 3


def test_message_sets_of_older_formats_are_recognized_even_if_short() -> None:
    for magic in (0, 1):
        with pytest.raises(UnsupportedMagic, match=f"magic {magic}"):
            check(bytes(16) + bytes([magic]))
    with pytest.raises(CorruptBatch, match="magic 3"):
        check(changed(16, ">b", 3))
    with pytest.raises(CorruptBatch, match="magic -1"):
        check(changed(16, ">b", -1))


def test_every_prefix_is_corrupt() -> None:
    batch = bytes(build(RECORDS))
    for size in range(len(batch)):
        with pytest.raises(CorruptBatch):
            check(batch[:size])


def test_exactly_one_batch_is_taken() -> None:
    batch = bytes(build(RECORDS))
    with pytest.raises(InvalidBatch, match="exactly one"):
        check(batch + batch)
    with pytest.raises(InvalidBatch, match="1 bytes after"):
        check(batch + b"\x00")


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_shorter_than_a_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptBatch, match="shorter than a batch header"):
        check(changed(8, ">i", length))


def test_every_flipped_byte_is_noticed_but_for_the_stamped_ones() -> None:
    batch = bytes(build(RECORDS))
    for position in range(len(batch)):
        for bit in range(8):
            broken = bytearray(batch)
            broken[position] ^= 1 << bit
            if position < 8 or 12 <= position < 16:
                assert check(broken).crc == check(batch).crc
                continue
            with pytest.raises(BatchError) as raised:
                check(broken)
            assert position < 17 or type(raised.value) is CorruptBatch


@pytest.mark.parametrize(("count", "last"), [(0, -1), (-1, -2), (3, 3), (3, 1), (2**31 - 1, 2), (3, -1)])
def test_counts_must_agree(count: int, last: int) -> None:
    batch = build(RECORDS)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, last)
    with pytest.raises(InvalidBatch, match="last offset delta"):
        check(sealed(batch))


def test_a_control_batch_is_not_a_clients_to_send() -> None:
    with pytest.raises(InvalidBatch, match="control"):
        check(changed(21, ">h", 0x20))
    assert peek(changed(21, ">h", 0x20)).is_control


def test_a_stored_batch_may_be_a_marker_and_must_be_whole() -> None:
    for batch in (build([(None, b"x", 5, ())]), build_marker(Marker(7, 1, True, 3), 5)):
        assert check_stored(batch) == peek(batch)
        for place in range(21, len(batch)):
            batch[place] ^= 1
            with pytest.raises(CorruptBatch):
                check_stored(batch)
            batch[place] ^= 1
        with pytest.raises(InvalidBatch):
            check_stored(batch + b"x")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_do_not_exist(codec: int) -> None:
    with pytest.raises(UnknownCodec, match=str(codec)):
        check(changed(21, ">h", codec))


@pytest.mark.parametrize("fields", [(-1, -1, -1), (-1, 0, 0), (0, 0, 0), (2**62, 2**15 - 1, 2**31 - 1)])
def test_producer_fields_that_clients_send(fields: tuple[int, int, int]) -> None:
    header = check(from_producer(*fields))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == fields


@pytest.mark.parametrize("fields", [(0, -1, 0), (5, 0, -1), (-2, -1, -1), (5, -1, -1)])
def test_producer_fields_that_contradict_each_other(fields: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidBatch, match="producer"):
        check(from_producer(*fields))


def test_a_transaction_needs_a_producer_id() -> None:
    with pytest.raises(InvalidBatch, match="transactional"):
        check(build(RECORDS, transactional=True))
    batch = build(RECORDS, transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    assert check(batch).is_transactional


def test_stamping_leaves_the_crc_right() -> None:
    batch = build(RECORDS)
    stamped = bytearray(batch)
    accelerator.stamp(stamped, 2**53 - 1, 9)

    assert stamped[16:] == batch[16:]
    header = check(stamped)
    assert (header.base_offset, header.leader_epoch) == (2**53 - 1, 9)
    assert header[3:] == check(batch)[3:]
    assert read_header(stamped[:61]) == header


def test_stamping_writes_into_a_slice_of_a_larger_buffer() -> None:
    frame = bytearray(100) + build(RECORDS)
    accelerator.stamp(memoryview(frame)[100:], 5, 1)
    assert check(frame[100:])[:3] == (5, len(frame) - 112, 1)
    assert frame[:100] == bytes(100)


@pytest.mark.parametrize("base_offset", [-(2**63), -1, 0, 2**40 + 3, 2**63 - 1])
@pytest.mark.parametrize("leader_epoch", [-(2**31), -1, 0, 70_000, 2**31 - 1])
def test_any_stamp_is_read_back(base_offset: int, leader_epoch: int) -> None:
    batch = bytearray(build(RECORDS))
    accelerator.stamp(batch, base_offset, leader_epoch)
    assert (peek(batch).base_offset, peek(batch).leader_epoch) == (base_offset, leader_epoch)


def test_a_stamp_needs_room_and_a_buffer_that_may_be_written_to() -> None:
    for wrong in ((bytearray(15), 1, 1), (bytes(61), 1, 1), (bytearray(61), 2**63, 1), (bytearray(61), 1, 2**31)):
        with pytest.raises((ValueError, TypeError, BufferError, OverflowError, struct.error)):
            accelerator.stamp(*wrong)


def test_log_append_time_gives_a_valid_batch_with_the_brokers_time() -> None:
    batch = build(RECORDS, codec=4)
    log_append_time(batch, 77)
    header = check(batch)
    assert (header.timestamp_type, header.max_timestamp, header.codec) == (1, 77, 4)
    assert header.base_timestamp == 1_000
