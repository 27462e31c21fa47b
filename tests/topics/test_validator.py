"""Which batches may enter a topic: what the header and the topic's configuration say."""

import pytest

from headrace.records.accelerator import crc32c
from headrace.records.batch import check
from headrace.records.build import build
from headrace.topics.config import TopicConfig, TopicDefaults, resolve
from headrace.topics.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    TopicError,
    UnsupportedCompression,
    UnsupportedFormat,
)
from headrace.topics.validator import accept

NOW = 1_700_000_000_000


def config(**given: str) -> TopicConfig:
    return resolve({name.replace("_", "."): text for name, text in given.items()}, TopicDefaults())


def made(count: int = 2, timestamp: int = NOW, codec: int = 0, producer: int = -1) -> bytearray:
    epoch = sequence = -1 if producer < 0 else 3
    return build(
        [(b"k", b"v", timestamp + number, ()) for number in range(count)],
        codec=codec,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def with_attributes(batch: bytearray, bits: int) -> bytearray:
    """The batch with these attribute bits set, and a CRC that agrees."""
    batch[22] |= bits
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def test_what_is_read_of_a_batch() -> None:
    append = accept(made(3, producer=9), config(), NOW)
    assert (append.span, append.max_timestamp) == (3, NOW + 2)
    assert (append.producer_id, append.producer_epoch, append.base_sequence) == (9, 3, 3)


def test_the_largest_batch_is_the_topics_or_the_callers() -> None:
    size = len(made())
    accept(made(), config(max_message_bytes=str(size)), NOW)
    with pytest.raises(MessageTooLarge, match=f"{size} bytes is over max.message.bytes={size - 1}"):
        accept(made(), config(max_message_bytes=str(size - 1)), NOW)
    accept(made(), config(max_message_bytes="1"), NOW, most_bytes=size)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda batch: batch[:-1], CorruptBatch),
        (lambda batch: batch + b"x", InvalidRecord),
        (lambda batch: batch[:60], CorruptBatch),
        (lambda batch: batch[:16] + b"\1" + batch[17:], UnsupportedFormat),
        (lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), CorruptBatch),
        (lambda batch: bytearray(), CorruptBatch),
    ],
)
def test_a_batch_that_is_none(change: object, error: type[TopicError]) -> None:
    assert callable(change)
    with pytest.raises(error):
        accept(bytearray(change(made())), config(), NOW)


def test_timestamps_outside_the_topics_bounds() -> None:
    near = config(message_timestamp_after_max_ms="10", message_timestamp_before_max_ms="10")
    accept(made(1, NOW + 10), near, NOW)
    accept(made(1, NOW - 10), near, NOW)
    with pytest.raises(InvalidTimestamp, match="ahead"):
        accept(made(1, NOW + 11), near, NOW)
    with pytest.raises(InvalidTimestamp, match="old"):
        accept(made(1, NOW - 11), near, NOW)
    accept(made(1, -1), near, NOW)  # a record without a time is as old as its arrival


def test_the_servers_time_replaces_the_producers() -> None:
    batch = made(2, NOW - 5_000)
    append = accept(batch, config(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1"), NOW)
    header = check(batch)
    assert (append.max_timestamp, header.max_timestamp, header.timestamp_type) == (NOW, NOW, 1)


def test_zstd_needs_a_version_that_has_it() -> None:
    accept(made(codec=4), config(), NOW)
    with pytest.raises(UnsupportedCompression, match="version 7"):
        accept(made(codec=4), config(), NOW, zstd_allowed=False)


def test_what_only_the_server_or_a_transaction_sets() -> None:
    with pytest.raises(InvalidTimestamp, match="only the server"):
        accept(with_attributes(made(), 0x08), config(), NOW)
    assert accept(with_attributes(made(producer=9), 0x10), config(), NOW).transaction == ""
