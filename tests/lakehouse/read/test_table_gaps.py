"""Offsets of aborted records and markers, which no archive has, are read past wherever they are."""

from datetime import UTC, datetime
from typing import Any

import oci.streaming
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.harness.wire import Wire, opened
from tests.lakehouse.conftest import T0, Kept, Record, a_record

from headrace.client.offsets import Extent, Range
from headrace.client.offsets import TopicPartition as Place
from headrace.client.options import parse
from headrace.kafka.errors import Code
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.location import Place as Folder
from headrace.lakehouse.write.table import ArchiveTable
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Log, Subscription
from headrace.testing.oci import OciClients

END = 44
PRESENT = [*range(4, 24), *range(28, 40)]
"""At the start, in the middle and at the end are aborted transactions. Before the last one is a committed one."""


def span(first: int, end: int) -> list[Record]:
    return [a_record(offset) for offset in range(first, end)]


@pytest.fixture
def gaps(kept: Kept) -> Kept:
    """All records are only in the archive, in files of 10."""
    kept.create()
    kept.transact(*span(0, 3), commit=False)
    kept.produce(*span(4, 24))
    kept.transact(*span(24, 27), commit=False)
    kept.produce(*span(28, 38))
    kept.transact(*span(38, 40), commit=True)
    kept.transact(*span(41, 43), commit=False)
    kept.archive(END, rows_per_file=10, group=4)
    assert kept.retain() == (0, END)
    return kept


def test_a_partition_whose_archived_records_are_all_aborted_is_trimmed(kept: Kept) -> None:
    kept.create()
    kept.transact(*span(0, 3), commit=False)
    kept.archive(4, rows_per_file=10, group=4)
    assert kept.retain() == (0, 4)
    kept.produce(*span(4, 6))
    with Wire(kept.server.kafka) as wire:
        for offset in range(6):
            found = wire.fetch(kept.name, offset)
            assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, 0, 6)
            assert found.records  # else a consumer would stay there
    assert kept.read(0, 2) == kept.written


def test_a_fetch_reads_from_the_next_record(gaps: Kept) -> None:
    assert [one[0] for one in gaps.written] == PRESENT
    with Wire(gaps.server.kafka) as wire:
        for offset in range(END):
            found = wire.fetch(gaps.name, offset)
            assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, 0, END)
            records = opened(found.records)
            assert [one.offset for one in records][:1] == [one for one in PRESENT if one >= offset][:1]
            assert found.records  # else a consumer would stay there
        assert wire.fetch(gaps.name, END + 1).error_code == Code.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_consumer_comes_to_the_end(gaps: Kept, isolation: str) -> None:
    assert gaps.read(0, len(PRESENT), **{"isolation.level": isolation}) == gaps.written
    assert gaps.read(25, 12, **{"isolation.level": isolation}) == gaps.written[20:]
    settings: Any = {"bootstrap.servers": gaps.server.kafka, "group.id": "to-the-end", "auto.offset.reset": "error"}
    consumer = Consumer(settings | {"enable.partition.eof": True, "isolation.level": isolation})
    try:
        consumer.assign([TopicPartition(gaps.name, 0, 0)])
        found: list[int | None] = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            found.append(message.offset())
        assert (found, message.offset()) == (PRESENT, END)
    finally:
        consumer.close()


def test_the_log_starts_there_after_a_restart(gaps: Kept) -> None:
    gaps.server.restart()
    assert gaps.starts() == (0, END)
    assert gaps.read(0, len(PRESENT)) == gaps.written
    gaps.produce(*span(END, END + 2))
    assert gaps.read(40, 2) == gaps.written[-2:]


def test_oracles_sdk_reads_past_gaps(gaps: Kept) -> None:
    clients = OciClients(gaps.server.http)
    [stream] = clients.admin_client().list_streams(compartment_id=clients.compartment_id, name=gaps.name).data
    client = clients.stream_client()

    def read(kind: str, **where: Any) -> list[int]:
        details = oci.streaming.models.CreateCursorDetails(partition="0", type=kind, **where)
        cursor = client.create_cursor(stream.id, details).data.value
        found: list[int] = []
        for _ in range(20):
            answer = client.get_messages(stream.id, cursor, limit=7)
            found += [message.offset for message in answer.data]
            cursor = answer.headers["opc-next-cursor"]
        return found

    assert read("TRIM_HORIZON") == PRESENT
    for offset in (0, 2, 25, 41):
        assert read("AT_OFFSET", offset=offset) == [one for one in PRESENT if one >= offset]


def test_spark_reads_past_gaps(gaps: Kept) -> None:
    place = Place(gaps.name, 0)

    def check(log: Log) -> None:
        topics = log.topics(Subscription(names=(gaps.name,)))
        assert log.extents(topics) == {place: Extent(0, END)}
        for start, end in ((0, END), (0, 3), (2, 26), (25, 27), (40, END), (39, 42)):
            found = log.records(topics[gaps.name].stream(0), Range(place, start, end))
            offsets = [offset for batch in found for offset in batch.column("offset").to_pylist()]
            assert offsets == [one for one in PRESENT if start <= one < end]

    with LogReader(gaps.server.storage, committed=True) as log:
        check(log)
    options = parse({"kafka.bootstrap.servers": gaps.server.kafka, "kafka.isolation.level": "read_committed"})
    assert options is not None
    with KafkaLog(options, own=True) as kafka_log:
        check(kafka_log)


def test_retention_removes_a_gap_with_the_file_after_it(kept: Kept) -> None:
    now = kept.server.clock.now_ms()

    def at(offset: int, minutes: int) -> Record:
        return offset, now + minutes * 60_000 + offset, None, b"v", ()

    kept.create(retention_ms=3_600_000)
    kept.transact(*[at(offset, -80) for offset in range(3)], commit=False)
    kept.produce(*[at(offset, -80) for offset in range(4, 24)])
    kept.transact(*[at(offset, 0) for offset in range(24, 27)], commit=False)
    kept.produce(*[at(offset, 0) for offset in range(28, 48)])
    kept.archive(48, rows_per_file=20)
    # The gap before a file that remains is still readable: a consumer may be there.
    assert kept.retain() == (24, 48)
    assert [kept.error(offset) for offset in (0, 3, 23)] == [Code.OFFSET_OUT_OF_RANGE] * 3
    assert [one[0] for one in kept.read(24, 20)] == [*range(28, 48)]
    with LogReader(kept.server.storage, committed=True) as log:
        topics = log.topics(Subscription(names=(kept.name,)))
        assert log.extents(topics) == {Place(kept.name, 0): Extent(24, 48)}


def test_expired_records_are_out_of_range(kept: Kept) -> None:
    kept.create()
    kept.transact(*span(0, 3), commit=False)
    kept.produce(*span(4, 24))
    kept.transact(*span(24, 27), commit=False)
    kept.produce(*span(28, 48))
    kept.archive(48, rows_per_file=20)
    assert kept.retain() == (0, 48)
    table = ArchiveTable(Folder.of(str(kept.folder / "table")))
    assert maintenance.expire(table, before=datetime.fromtimestamp((T0 + 25) / 1000, UTC)) == (1, 20)
    assert kept.retain() == (24, 48)
    assert [kept.error(offset) for offset in (3, 23, 24)] == [Code.OFFSET_OUT_OF_RANGE] * 2 + [0]
    assert [one[0] for one in kept.read(24, 20)] == [*range(28, 48)]
    assert maintenance.expire(table, before=datetime.now(UTC)) == (1, 20)
    kept.server.restart()
    assert kept.error(30) == Code.OFFSET_OUT_OF_RANGE
    assert kept.starts() == (48, 48)
