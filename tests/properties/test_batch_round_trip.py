"""Records survive a round trip through batches with any codec and every decoder."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.batch import check, log_append_time, peek
from headrace.records.build import build
from headrace.records.fallback import columns as fallback_columns
from headrace.records.fallback import encode
from headrace.records.fallback.columns import PureColumns
from headrace.records.walk import Record, payload, records

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its own schemas by a deprecated call
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder


class NewRecord(NamedTuple):
    """What `build` takes, with names."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: encode.Headers = ()


UNTIMED = settings(deadline=None)  # the first example imports libraries, and the machine may be busy
INT64 = st.integers(-(2**63), 2**63 - 1)
CONTENT = st.none() | st.binary(max_size=40) | st.sampled_from([b"", bytes(63), bytes(64), bytes(127), bytes(9_000)])
HEADERS = st.lists(st.tuples(st.text(max_size=8), CONTENT), max_size=3).map(tuple)
MILLISECONDS = st.integers(-1, 2**42)
RECORDS = st.lists(st.builds(NewRecord, CONTENT, CONTENT, MILLISECONDS, HEADERS), min_size=1, max_size=70)
CODECS = st.integers(0, 4)


def expected(new: list[NewRecord], base_offset: int) -> list[Record]:
    return [Record(base_offset + at, r.timestamp, r.key, r.value, tuple(r.headers)) for at, r in enumerate(new)]


@UNTIMED
@given(new=RECORDS, codec=CODECS, base_offset=st.integers(0, 2**53))
@example(new=[NewRecord(None, None, -1)], codec=0, base_offset=2**53 - 1)
def test_build_check_walk(new: list[NewRecord], codec: int, base_offset: int) -> None:
    batch = build(new, codec=codec)
    header = check(batch)
    assert (header.count, header.codec, header.max_timestamp) == (len(new), codec, max(r.timestamp for r in new))
    assert records(batch, base_offset) == expected(new, base_offset)


@UNTIMED
@given(new=RECORDS, codec=CODECS, timestamp=MILLISECONDS)
def test_log_append_time_changes_timestamps_only(new: list[NewRecord], codec: int, timestamp: int) -> None:
    batch = build(new, codec=codec)
    log_append_time(batch, timestamp)
    check(batch)
    assert records(batch, 0) == [r._replace(timestamp=timestamp) for r in expected(new, 0)]


@UNTIMED
@given(new=RECORDS, codec=CODECS)
def test_aiokafka_reads_ours_and_we_read_aiokafkas(new: list[NewRecord], codec: int) -> None:
    assert seen(DefaultRecordBatch, build(new, codec=codec)) == expected(new, 0)
    assume(not unset_at_first(new))
    assert records(written(DefaultRecordBatchBuilder, new, codec), 0) == expected(new, 0)


@UNTIMED
@given(new=RECORDS, codec=st.integers(0, 1))
def test_kafka_python_reads_ours_and_we_read_kafka_pythons(new: list[NewRecord], codec: int) -> None:
    assert seen(KafkaPythonBatch, build(new, codec=codec)) == expected(new, 0)
    assume(not unset_at_first(new))
    assert records(written(KafkaPythonBuilder, new, codec), 0) == expected(new, 0)


def unset_at_first(new: list[NewRecord]) -> bool:
    """Whether the builders of both clients take the timestamp of the second record for that of the first."""
    return len(new) > 1 and new[0].timestamp == -1


def seen(reader: Callable[[bytes], Any], batch: bytearray) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in reader(bytes(batch))]


def written(builder_class: Callable[..., Any], new: list[NewRecord], codec: int) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for at, r in enumerate(new):
        builder.append(at, r.timestamp, r.key, r.value, list(r.headers))
    return bytes(builder.build())


@UNTIMED
@given(
    new=st.lists(st.builds(NewRecord, CONTENT, CONTENT, INT64, HEADERS), min_size=1, max_size=20),
    base_timestamp=INT64,
)
def test_both_encoders_write_the_same_bytes(new: list[NewRecord], base_timestamp: int) -> None:
    assert accelerator.encode(new, base_timestamp) == encode.encode(new, base_timestamp)


@UNTIMED
@given(new=RECORDS, codec=CODECS, base_offset=st.integers(0, 2**53))
def test_both_readers_see_the_same_records(new: list[NewRecord], codec: int, base_offset: int) -> None:
    batch = build(new, codec=codec)
    header = peek(batch)
    section = payload(header, batch)
    fields = (header.count, header.last_offset_delta, base_offset, header.base_timestamp, None)
    assert fallback_columns.records(Record, section, *fields) == accelerator.records(Record, section, *fields)


@UNTIMED
@given(
    new=st.lists(RECORDS, min_size=1, max_size=4),
    first=st.integers(0, 100),
    length=st.integers(0, 200),
    max_rows=st.integers(1, 50),
    max_bytes=st.integers(1, 20_000),
    include_headers=st.booleans(),
    append_time=st.booleans(),
)
def test_columns_hold_the_records_of_the_range_in_any_cut(
    new: list[list[NewRecord]],
    first: int,
    length: int,
    max_rows: int,
    max_bytes: int,
    include_headers: bool,
    append_time: bool,
) -> None:
    cuts = []
    for kind in (accelerator.open_columns, PureColumns):
        columns = kind(max_rows, max_bytes, include_headers)
        rows = []
        base_offset = 0
        for records_of_batch in new:
            section = encode.encode(records_of_batch, 5)
            count = len(records_of_batch)
            columns.open(section, count, count - 1, base_offset, 5, append_time, first, first + length)
            while not columns.fill():
                rows.append(columns.rows)
                columns.take()
            base_offset += count
        rows.append(columns.rows)
        cuts.append(rows)
    assert cuts[0] == cuts[1]
    assert sum(cuts[0]) == max(0, min(base_offset, first + length) - first)
    assert max(cuts[0]) <= max_rows
