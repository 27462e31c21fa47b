"""What Produce takes and refuses, and with which code (reference: Kafka's record validation, KIP-110, KIP-467)."""

import struct
import time

import pytest
from tests.harness.wire import Wire, batch, batches, opened

from headrace.kafka.errors import Code
from headrace.protocol.messages import ProduceRequest
from headrace.records.accelerator import crc32c
from headrace.records.batch import peek
from headrace.records.compression import CODECS
from headrace.testing import Server

ATTRIBUTES_AT = 21
LAST_DELTA_AT = 23
COUNT_AT = 57
HOUR_MS = 3_600_000


def altered(data: bytes, at: int, layout: str, value: int) -> bytes:
    """The batch with one field changed and a CRC that fits."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def message_set(magic: int) -> bytes:
    """One message of the format before record batches."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 0) if magic else b"") + struct.pack(">ii", -1, 3) + b"old"
    message = struct.pack(">I", 0) + body
    return struct.pack(">qi", 0, len(message)) + message


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("version", range(3, 10))
def test_offsets_are_dense(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic)
    spans = [1, 3, 1, 100]
    placed = [wire.produce(topic, batch(*[b"x"] * span), version=version) for span in spans]
    assert [one.base_offset for one in placed] == [0, 1, 4, 5]
    assert {one.error_code for one in placed} == {0}
    assert {one.log_append_time_ms for one in placed} == {-1}
    assert {one.log_start_offset for one in placed} == ({0} if version >= 5 else {-1})
    assert wire.offset(topic, -1).offset == 105


@pytest.mark.parametrize("acks", [-1, 1])
def test_acknowledged_records_can_be_fetched(wire: Wire, topic: str, acks: int) -> None:
    wire.create(topic)
    sent = batch(b"one", None, b"", step=5)
    wire.produce(topic, sent, acks=acks)
    [kept] = batches(wire.fetch(topic, 0).records)
    assert kept[16:] == sent[16:], "all but base offset and leader epoch comes back as it was"
    assert [record.value for record in opened(kept)] == [b"one", None, b""]


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_other_acks_are_refused(wire: Wire, topic: str, acks: int) -> None:
    wire.create(topic)
    answer = wire.produce(topic, batch(b"x"), acks=acks)
    assert (answer.error_code, answer.base_offset) == (Code.INVALID_REQUIRED_ACKS, -1)
    assert wire.offset(topic, -1).offset == 0


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_codecs_stay_as_they_came(wire: Wire, topic: str, codec: str) -> None:
    wire.create(topic)
    sent = batch(*[b"value %d" % number for number in range(50)], codec=CODECS[codec])
    assert wire.produce(topic, sent).error_code == 0
    [kept] = batches(wire.fetch(topic, 0).records)
    assert kept[16:] == sent[16:]


@pytest.mark.parametrize(("version", "code"), [(3, 76), (6, 76), (7, 0), (9, 0)])
def test_zstd_needs_version_7(wire: Wire, topic: str, version: int, code: int) -> None:
    wire.create(topic)
    assert wire.produce(topic, batch(b"x", codec=4), version=version).error_code == code


def test_a_client_too_old_for_zstd_gets_an_error_in_a_fetch(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"x", codec=4))
    assert wire.fetch(topic, 0, version=9).error_code == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert wire.fetch(topic, 0, version=10).error_code == 0


GOOD = batch(b"one", b"two", b"three")
CUT = GOOD[:-1]
REFUSED: dict[str, tuple[bytes | None, set[int]]] = {
    "crc": (GOOD[:-1] + b"\xff", {Code.CORRUPT_MESSAGE}),
    "cut off": (CUT, {Code.CORRUPT_MESSAGE}),
    "no bytes": (b"", {Code.CORRUPT_MESSAGE, Code.INVALID_RECORD}),
    "null": (None, {Code.CORRUPT_MESSAGE, Code.INVALID_RECORD}),
    "header cut off": (GOOD[:40], {Code.CORRUPT_MESSAGE}),
    "length negative": (GOOD[:8] + struct.pack(">i", -1) + GOOD[12:], {Code.CORRUPT_MESSAGE}),
    "length too small": (GOOD[:8] + struct.pack(">i", 10) + GOOD[12:], {Code.CORRUPT_MESSAGE}),
    "length too large": (GOOD[:8] + struct.pack(">i", 1 << 30) + GOOD[12:], {Code.CORRUPT_MESSAGE}),
    "two batches": (GOOD + GOOD, {Code.INVALID_RECORD}),
    "magic 0": (message_set(0), {Code.INVALID_RECORD}),
    "magic 1": (message_set(1), {Code.INVALID_RECORD}),
    "magic 3": (altered(GOOD, 16, ">b", 3), {Code.INVALID_RECORD, Code.CORRUPT_MESSAGE}),
    "control": (altered(GOOD, ATTRIBUTES_AT, ">h", 0x20), {Code.INVALID_RECORD}),
    "transactional": (altered(GOOD, ATTRIBUTES_AT, ">h", 0x10), {Code.INVALID_RECORD}),
    "codec 5": (altered(GOOD, ATTRIBUTES_AT, ">h", 5), {Code.UNSUPPORTED_COMPRESSION_TYPE}),
    "claims log append time": (altered(GOOD, ATTRIBUTES_AT, ">h", 8), {Code.INVALID_TIMESTAMP}),
    "no records": (altered(GOOD, COUNT_AT, ">i", 0), {Code.INVALID_RECORD}),
    "negative count": (altered(GOOD, COUNT_AT, ">i", -3), {Code.INVALID_RECORD}),
    "count over delta": (altered(GOOD, COUNT_AT, ">i", 4), {Code.INVALID_RECORD}),
    "delta over count": (altered(GOOD, LAST_DELTA_AT, ">i", 3), {Code.INVALID_RECORD}),
    "negative delta": (altered(GOOD, LAST_DELTA_AT, ">i", -1), {Code.INVALID_RECORD}),
    "too far ahead": (batch(b"x", timestamp=now_ms() + 2 * HOUR_MS), {Code.INVALID_TIMESTAMP}),
    "sequence without epoch": (
        batch(b"x", producer_id=5, producer_epoch=-1, base_sequence=0),
        {Code.INVALID_RECORD},
    ),
    "producer without sequence": (
        batch(b"x", producer_id=5, producer_epoch=0, base_sequence=-1),
        {Code.INVALID_RECORD},
    ),
}


@pytest.mark.parametrize("fault", sorted(REFUSED))
def test_a_bad_batch_gets_the_protocols_error(wire: Wire, topic: str, running: Server, fault: str) -> None:
    data, codes = REFUSED[fault]
    wire.create(topic)
    before = len(running.log())
    answer = wire.produce(topic, data)
    assert answer.error_code in codes, answer
    assert (answer.base_offset, answer.log_append_time_ms) == (-1, -1)
    assert answer.error_message
    running.logged(topic, before)
    assert wire.produce(topic, GOOD).base_offset == 0, "nothing was taken, and the connection goes on"


def test_error_messages_begin_with_version_8(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert wire.produce(topic, CUT, version=7).error_message is None
    assert wire.produce(topic, CUT, version=8).error_message


def test_the_largest_batch(wire: Wire, topic: str) -> None:
    wire.create(topic, max_message_bytes=20_000)
    framing = 20_000 - 19_928
    fitting = batch(bytes(20_000 - framing))
    assert len(fitting) == 20_000
    assert wire.produce(topic, batch(bytes(20_001 - framing))).error_code == Code.MESSAGE_TOO_LARGE
    assert wire.produce(topic, fitting).error_code == 0
    default = wire.create(f"{topic}-default")
    assert wire.produce(default, batch(bytes(1_048_588 - framing))).error_code == 0
    assert wire.produce(default, batch(bytes(1_048_589 - framing))).error_code == Code.MESSAGE_TOO_LARGE


def test_each_partition_has_its_own_answer(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=2)
    parts = [
        ProduceRequest.PartitionProduceData(index=index, records=data)
        for index, data in [(0, GOOD), (1, CUT), (2, GOOD), (-1, GOOD)]
    ]
    data = [
        ProduceRequest.TopicProduceData(name=topic, partition_data=parts),
        ProduceRequest.TopicProduceData(name=f"{topic}-gone", partition_data=parts[:1]),
    ]
    answer = wire.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=data), 9)
    codes = [[one.error_code for one in found.partition_responses] for found in answer.responses]
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[0, Code.CORRUPT_MESSAGE, unknown, unknown], [unknown]]


def test_produce_creates_no_topic(wire: Wire, topic: str) -> None:
    assert wire.produce(topic, GOOD).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.metadata(topic).topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_log_append_time(wire: Wire, topic: str) -> None:
    wire.create(topic, message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = wire.produce(topic, batch(b"one", b"two", timestamp=5, step=1))
    assert before <= answer.log_append_time_ms <= now_ms()
    [kept] = batches(wire.fetch(topic, 0).records)
    header = peek(kept)
    assert header.timestamp_type == 1
    assert header.max_timestamp == answer.log_append_time_ms
    assert header.crc == crc32c(kept[21:])
    assert {record.timestamp for record in opened(kept)} == {answer.log_append_time_ms}
    assert wire.offset(topic, 6).offset == 0, "found by the server's time"


def test_log_append_time_takes_any_time_of_the_producer(wire: Wire, topic: str) -> None:
    wire.create(topic, message_timestamp_type="LogAppendTime")
    assert wire.produce(topic, batch(b"x", timestamp=now_ms() + 2 * HOUR_MS)).error_code == 0


def test_bounds_of_timestamps_are_the_topics(wire: Wire, topic: str) -> None:
    wire.create(topic, message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=3 * HOUR_MS)
    now = now_ms()
    assert wire.produce(topic, batch(b"x", timestamp=now + 2 * HOUR_MS)).error_code == 0
    assert wire.produce(topic, batch(b"x", timestamp=now + 4 * HOUR_MS)).error_code == Code.INVALID_TIMESTAMP
    assert wire.produce(topic, batch(b"x", timestamp=now - 2 * HOUR_MS)).error_code == Code.INVALID_TIMESTAMP
    assert wire.produce(topic, batch(b"x", timestamp=-1)).error_code == 0, "no timestamp is none out of bounds"
