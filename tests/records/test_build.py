"""Batches built here are read by other implementations, codec by codec."""

import struct
import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch

from headrace.records.batch import check
from headrace.records.build import build
from headrace.records.errors import UnknownCodec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its own schemas by a deprecated call
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

pytestmark = pytest.mark.usefixtures("implementation")

RECORDS = [
    (b"key", b"value" * 50, 1_700_000_000_000, (("trace", b"1"), ("empty", b""), ("null", None), ("ü", b"x"))),
    (None, b"", 1_699_999_999_000, ()),
    (b"", None, 1_700_000_000_001, (("", b""),)),
]


def seen_by(reader: object, batch: bytearray) -> list[tuple[object, ...]]:
    assert callable(reader)
    return [
        (record.offset, record.timestamp, record.key, record.value, list(record.headers))
        for record in reader(bytes(batch))
    ]


EXPECTED = [(70 + at, time, key, value, list(headers)) for at, (key, value, time, headers) in enumerate(RECORDS)]


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_reads_it(codec: int) -> None:
    assert seen_by(AiokafkaBatch, build(RECORDS, codec=codec, base_offset=70)) == EXPECTED


@pytest.mark.parametrize("codec", [0, 1])
def test_kafka_python_reads_it(codec: int) -> None:
    assert seen_by(KafkaPythonBatch, build(RECORDS, codec=codec, base_offset=70)) == EXPECTED


def test_the_header_says_what_was_asked_for() -> None:
    batch = build(RECORDS, codec=3, base_offset=9, leader_epoch=4, producer_id=11, producer_epoch=2, base_sequence=5)
    header = check(batch)
    assert (header.base_offset, header.leader_epoch, header.codec, header.count) == (9, 4, 3, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 5)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_001)


def test_records_may_be_any_iterable_of_tuples() -> None:
    assert check(build((b"k", b"v", 5, ()) for _ in range(7))).count == 7


def test_what_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build([])
    with pytest.raises(UnknownCodec):
        build(RECORDS, codec=6)
    with pytest.raises(struct.error):
        build(RECORDS, base_sequence=2**31)
