"""Offsets by time (reference: KIP-79, KIP-734, checklist of ListOffsets)."""

import time
from collections.abc import Iterator

import pytest
from tests.harness.wire import Wire, batch, opened

from headrace.kafka.errors import Code
from headrace.records.build import build
from headrace.records.compression import CODECS
from headrace.testing import Server, server

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
T = 1_700_000_000_000


@pytest.mark.parametrize("version", range(1, 12))
def test_versions(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"0", b"1", b"2", timestamp=T, step=10))
    epoch = wire.metadata(topic).topics[0].partitions[0].leader_epoch if version >= 4 else -1
    for timestamp, offset, found_time in [(LATEST, 3, -1), (EARLIEST, 0, -1), (T + 5, 1, T + 10)]:
        found = wire.offset(topic, timestamp, version=version)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, offset, found_time, epoch)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_time_inside_a_batch_finds_the_record(wire: Wire, topic: str, codec: str) -> None:
    wire.create(topic)
    for begin in (T, T + 100):
        wire.produce(topic, batch(*[b"x"] * 10, timestamp=begin, step=10, codec=CODECS[codec]))
    for timestamp, offset, found_time in [
        (0, 0, T), (T, 0, T), (T + 1, 1, T + 10), (T + 55, 6, T + 60), (T + 95, 10, T + 100), (T + 190, 19, T + 190),
    ]:  # fmt: skip
        found = wire.offset(topic, timestamp)
        assert (found.offset, found.timestamp) == (offset, found_time)


def test_a_time_after_the_last_record_finds_nothing(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert (wire.offset(topic, 0).offset, wire.offset(topic, 0).error_code) == (-1, 0)
    wire.produce(topic, batch(b"x", timestamp=T))
    found = wire.offset(topic, T + 1)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)


def test_the_largest_timestamp_and_its_offset(wire: Wire, topic: str) -> None:
    wire.create(topic)
    empty = wire.offset(topic, MAX_TIMESTAMP)
    assert (empty.error_code, empty.offset, empty.timestamp) == (0, -1, -1)
    wire.produce(topic, batch(b"0", b"1", timestamp=T, step=50))
    wire.produce(topic, batch(b"2", timestamp=T + 20))
    found = wire.offset(topic, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (1, T + 50)


def test_times_out_of_order_find_the_first_record_late_enough(wire: Wire, topic: str) -> None:
    wire.create(topic)
    for number, timestamp in enumerate([T + 30, T + 10, T + 20, T + 40]):
        wire.produce(topic, batch(b"%d" % number, timestamp=timestamp))
    assert [wire.offset(topic, T + late).offset for late in (5, 15, 25, 35, 40, 41)] == [0, 0, 0, 3, 3, -1]


@pytest.mark.parametrize(
    ("timestamp", "version"), [(MAX_TIMESTAMP, 6), (-4, 7), (-5, 7), (-5, 8), (-6, 9), (-6, 10), (-7, 11), (-100, 7)]
)
def test_specials_that_a_version_does_not_know(wire: Wire, topic: str, timestamp: int, version: int) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"x"))
    found = wire.offset(topic, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp) == (Code.UNSUPPORTED_VERSION, -1, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-5, 9), (-5, 11), (-6, 11)])
@pytest.mark.parametrize("storage", ["log", "native"])
def test_without_an_archive_nothing_is_tiered(
    wire: Wire, topic: str, timestamp: int, version: int, storage: str
) -> None:
    wire.create(topic, headrace_storage=storage)
    wire.produce(topic, batch(b"x"))
    found = wire.offset(topic, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, -1, -1, -1)


@pytest.mark.parametrize("partition", [-1, 1, 100])
def test_unknown_partitions(wire: Wire, topic: str, partition: int) -> None:
    wire.create(topic)
    assert wire.offset(topic, LATEST, partition=partition).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_unknown_topics(wire: Wire, topic: str) -> None:
    assert wire.offset(topic, LATEST).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.metadata(topic).topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION, "and it is not created"


@pytest.fixture(scope="module")
def trimming() -> Iterator[Server]:
    """A server that enforces retention all the time."""
    with server(log_retention_check_interval_ms=20) as started:
        yield started


def test_expired_offsets_are_out_of_range(trimming: Server, topic: str) -> None:
    with Wire(trimming.kafka) as wire:
        size = len(batch(bytes(1_000), bytes(1_000)))
        wire.create(topic, retention_bytes=3 * size, retention_ms=-1)
        for number in range(10):
            wire.produce(topic, batch(bytes(1_000), bytes(1_000), timestamp=T + number))
        deadline = time.monotonic() + 60
        while (start := wire.offset(topic, EARLIEST).offset) < 14:
            assert time.monotonic() < deadline, "retention has not come"
        assert start <= 16
        assert wire.offset(topic, LATEST).offset == 20
        assert wire.fetch(topic, start - 1).error_code == Code.OFFSET_OUT_OF_RANGE
        assert wire.fetch(topic, 0).error_code == Code.OFFSET_OUT_OF_RANGE
        found = wire.fetch(topic, start)
        assert (found.error_code, found.log_start_offset, found.high_watermark) == (0, start, 20)
        assert opened(found.records)[0].offset == start
        assert wire.offset(topic, 0).offset == start, "the first record that is still there"
        assert wire.produce(topic, batch(b"x", timestamp=T + 10)).log_start_offset >= start


def test_the_log_end_stays_when_everything_is_removed(trimming: Server, topic: str) -> None:
    with Wire(trimming.kafka) as wire:
        wire.create(topic, retention_ms=1)
        for number in range(5):
            wire.produce(topic, batch(b"old", timestamp=T + number))
        deadline = time.monotonic() + 60
        while wire.offset(topic, EARLIEST).offset < 5:
            assert time.monotonic() < deadline, "retention has not come"
        assert wire.offset(topic, LATEST).offset == 5
        assert wire.offset(topic, 0).offset == -1
        assert wire.offset(topic, MAX_TIMESTAMP).offset == -1
        assert wire.fetch(topic, 5).error_code == 0
        placed = wire.produce(topic, batch(b"next"))
        assert (placed.error_code, placed.base_offset) == (0, 5)


def test_retention_trims_a_compacted_topic_only_with_delete(trimming: Server, topic: str) -> None:
    with Wire(trimming.kafka) as wire:
        kept = wire.create(f"{topic}-kept", cleanup_policy="compact", retention_ms=1, retention_bytes=1)
        trimmed = wire.create(f"{topic}-trimmed", cleanup_policy="compact,delete", retention_ms=1)
        for name in (kept, trimmed):
            assert wire.produce(name, build([(b"k", b"old", T, ())])).error_code == 0
        deadline = time.monotonic() + 60
        # Each round of retention takes all topics in the order of their creation.
        while wire.offset(trimmed, EARLIEST).offset < 1:
            assert time.monotonic() < deadline, "retention has not come"
        assert (wire.offset(kept, EARLIEST).offset, wire.offset(kept, LATEST).offset) == (0, 1)
        assert [record.value for record in opened(wire.fetch(kept, 0).records)] == [b"old"]
