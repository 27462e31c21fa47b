"""Any bytes as a batch or as its records give a result or a documented error, never anything else."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records import by_aiokafka, native, plain, plain_columns
from headrace.records.arrow import decode
from headrace.records.build import build
from headrace.records.compression import compress, decompress
from headrace.records.errors import BatchError, CorruptBatch
from headrace.records.walk import Record, records

UNTIMED = settings(deadline=None)  # the first example imports libraries, and the machine may be busy
PARTS = st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x0c", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01"])
SECTIONS = st.binary(max_size=60) | st.lists(PARTS, max_size=40).map(b"".join)
COUNTS = st.integers(-3, 20) | st.sampled_from([2**31 - 1, -(2**31)])


@UNTIMED
@given(data=st.binary(max_size=200))
def test_any_bytes_as_a_batch(data: bytes) -> None:
    for check in (native.check, plain.check, native.peek, plain.peek):
        try:
            check(data)
        except BatchError:
            continue


@UNTIMED
@given(section=SECTIONS, count=COUNTS, last=COUNTS, base_offset=st.integers(-(2**63), 2**63 - 1))
def test_any_bytes_as_records(section: bytes, count: int, last: int, base_offset: int) -> None:
    for read in (native.records, by_aiokafka.records):
        try:
            found = read(Record, section, count, last, base_offset, 0, None)
        except CorruptBatch:
            continue
        assert len(found) == max(0, count)


@UNTIMED
@given(
    section=SECTIONS, count=COUNTS, last=COUNTS, rows=st.integers(1, 9), size=st.integers(1, 99), named=st.booleans()
)
def test_any_bytes_as_columns(section: bytes, count: int, last: int, rows: int, size: int, named: bool) -> None:
    for kind in (native.open_columns, plain_columns.PlainColumns):
        columns = kind(rows, size, named)
        try:
            columns.open(section, count, last, 0, 0, False, 2, 9)
            while not columns.fill():
                assert columns.rows <= rows
                columns.take()
        except CorruptBatch:
            continue
        assert columns.rows <= rows


@UNTIMED
@given(codec=st.integers(1, 4), data=st.binary(max_size=100))
def test_any_bytes_as_compressed_records(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, limit=100_000)) <= 100_000
    except BatchError:
        return


@UNTIMED
@given(codec=st.integers(0, 4), seed=st.integers(0, 2**32))
def test_a_batch_with_bytes_changed_cut_and_put_in(codec: int, seed: int) -> None:
    choose = random.Random(seed)
    batch = build([(b"key", b"value" * at, at, (("name", b"content"),)) for at in range(9)], codec=codec)
    section = bytearray(batch[61:])
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(section) + 1)
        section[at : at + choose.choice([0, 1, 1, 1, 5])] = choose.randbytes(choose.choice([0, 1, 1, 1, 5]))
    batch[61:] = section
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    for read in (
        lambda: records(batch, 0, limit=100_000),
        lambda: list(decode([(0, batch)], topic="t", partition=0, first_offset=0, end_offset=9, include_headers=True)),
    ):
        try:
            read()
        except BatchError:
            continue


@UNTIMED
@given(codec=st.integers(1, 4), records_section=st.binary(max_size=3_000))
def test_every_codec_brings_back_any_bytes(codec: int, records_section: bytes) -> None:
    assert decompress(codec, compress(codec, records_section)) == records_section
