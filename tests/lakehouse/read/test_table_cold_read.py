"""Records that are gone from Redis come back from the archive, by offset and by time, through both APIs."""

from datetime import UTC, datetime
from typing import Any

import oci.streaming
from tests.harness.wire import Wire, batches, opened
from tests.lakehouse.conftest import T0, Kept

from headrace.records.batch import peek
from headrace.testing.oci import OciClients


def test_a_consumer_reads_across_the_border_without_noticing(kept: Kept) -> None:
    kept.create().fill(300)
    assert kept.retain() == (0, 0)  # nothing goes that is not archived
    kept.archive(235, rows_per_file=50, group=16)
    assert kept.retain() == (0, 235)
    assert kept.read(0, 300) == kept.written
    assert kept.read(117, 30, **{"fetch.message.max.bytes": 1_000}) == kept.written[117:147]
    kept.fill(20)
    kept.archive()
    assert kept.retain() == (0, 320)
    assert kept.read(233, 87) == kept.written[233:]
    with Wire(kept.server.kafka) as wire:  # whole batches of one consecutive run, as large as they are asked for
        found = wire.fetch(kept.name, 100, partition_max_bytes=4_000)
        sizes = [len(one) for one in batches(found.records)]
        assert sum(sizes) - sizes[-1] < 4_000 < 3 * sum(sizes)
        assert [one.offset for one in opened(found.records)] == [*range(100, 100 + len(opened(found.records)))]
        assert (found.log_start_offset, found.high_watermark) == (0, 320)


def test_times_are_found_wherever_they_are(kept: Kept) -> None:
    kept.create().fill(40)
    kept.archive(None, rows_per_file=15, group=4)
    kept.retain()
    assert kept.found(T0 + 33) == (33, T0 + 33)
    assert kept.found(T0 - 5) == (0, T0)
    assert kept.found(-3) == (39, T0 + 39)
    assert kept.found(T0 + 1_000) == (-1, -1)
    kept.produce((40, T0 + 20, None, b"late", ()), (41, T0 + 39, None, b"as late as another", ()))
    assert kept.found(T0 + 19) == (19, T0 + 19)
    assert kept.found(-3) == (39, T0 + 39)
    kept.produce((42, T0 + 500, None, b"new", ()))
    assert kept.found(T0 + 40) == (42, T0 + 500)
    assert kept.found(-3) == (42, T0 + 500)


def test_log_append_times_are_still_marked_as_such(kept: Kept) -> None:
    kept.create(message_timestamp_type="LogAppendTime").fill(60)
    with Wire(kept.server.kafka) as wire:
        before = opened(wire.fetch(kept.name, 0).records)
    kept.archive()
    assert kept.retain() == (0, 60)
    with Wire(kept.server.kafka) as wire:
        after = wire.fetch(kept.name, 0).records
        assert opened(after) == before
        assert all(peek(one).attributes & 8 for one in batches(after))


def test_oracles_sdk_reads_across_the_border_too(kept: Kept) -> None:
    kept.create().fill(60)
    kept.archive(45, rows_per_file=20, group=7)
    assert kept.retain() == (0, 45)
    clients = OciClients(kept.server.http)
    [stream] = clients.admin_client().list_streams(compartment_id=clients.compartment_id, name=kept.name).data
    client = clients.stream_client()

    def read(kind: str, **where: Any) -> list[int]:
        details = oci.streaming.models.CreateCursorDetails(partition="0", type=kind, **where)
        cursor = client.create_cursor(stream.id, details).data.value
        found: list[int] = []
        while True:
            answer = client.get_messages(stream.id, cursor, limit=20)
            if not answer.data:
                return found
            found += [message.offset for message in answer.data]
            cursor = answer.headers["opc-next-cursor"]

    assert read("TRIM_HORIZON") == [*range(60)]
    assert read("AT_OFFSET", offset=33) == [*range(33, 60)]
    assert read("AT_TIME", time=datetime.fromtimestamp((T0 + 12) / 1000, UTC)) == [*range(12, 60)]


def test_total_retention_includes_the_archive(kept: Kept) -> None:
    now = kept.server.clock.now_ms()
    kept.create(retention_ms=3_600_000)
    for first in (0, 20, 40):
        kept.produce(*[(first + n, now + (first - 40) * 120_000 + n, None, b"v", ()) for n in range(20)])
    kept.archive(None, rows_per_file=20)
    assert kept.retain() == (20, 60)  # of two files the first is older than an hour
    assert [one[0] for one in kept.read(20, 40)] == [*range(20, 60)]
    with Wire(kept.server.kafka) as wire:
        assert wire.fetch(kept.name, 19).error_code == 1


def test_records_that_are_deleted_do_not_come_back(kept: Kept) -> None:
    kept.create().fill(60)
    kept.archive(40, rows_per_file=20)
    kept.retain()
    from confluent_kafka import TopicPartition  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": kept.server.kafka})
    for before, starts in ((13, (13, 40)), (50, (50, 50))):
        place = TopicPartition(kept.name, 0, before)
        assert admin.delete_records([place])[place].result(60).low_watermark == before
        assert kept.starts() == starts
    kept.server.restart()
    assert kept.starts() == (50, 50)
    assert kept.read(50, 10) == kept.written[50:]


def test_a_topic_of_the_same_name_has_nothing_of_the_one_before(kept: Kept) -> None:
    kept.create().fill(40)
    kept.archive()
    assert kept.retain() == (0, 40)
    with Wire(kept.server.kafka) as wire:
        for name in (kept.name, kept.name + "-after"):
            wire.delete(name)
    kept.written.clear()
    kept.create().fill(20)
    assert kept.retain() == (0, 0)
    assert kept.read(0, 20) == kept.written
    kept.archive()
    assert kept.retain() == (0, 20)
    assert kept.read(0, 20) == kept.written
