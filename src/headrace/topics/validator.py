"""Checks of a client's record batch. Reads the 61-byte header and the CRC, never the records."""

from headrace.records import accelerator
from headrace.records import errors as batch_errors
from headrace.records.batch import BatchHeader, log_append_time
from headrace.records.fallback.header import HeaderFields
from headrace.topics.config import TopicConfig
from headrace.topics.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompression,
    UnsupportedFormat,
)
from headrace.topics.model import Append

ZSTD = 4
LOG_APPEND_TIME = 1
_TRANSACTIONAL = 0x10
_UNUSUAL = ZSTD | LOG_APPEND_TIME << 3
"""Attribute bits that need a closer check: zstd, log append time."""


def accept(
    batch: bytearray | memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    zstd_allowed: bool = True,
    most_bytes: int | None = None,
    header: HeaderFields | None = None,
    transactional_id: str | None = None,
    adds_partition: bool = False,
) -> Append:
    """Check a batch against the format and the topic's limits.

    With `message.timestamp.type=LogAppendTime`, the batch is changed in place: its time becomes `now_ms`.

    Args:
        batch: exactly one record batch in a writable buffer.
        config: the topic's configuration.
        now_ms: milliseconds since the epoch.
        zstd_allowed: false for Produce requests below version 7 (KIP-110).
        most_bytes: replaces `max.message.bytes` for an API with its own limits.
        header: result of `records.batch.check`, if known.
        transactional_id: that of the request, if any.
        adds_partition: whether the batch adds its partition to the transaction (Produce 12, KIP-890).

    Raises:
        MessageTooLarge, CorruptBatch, UnsupportedFormat, InvalidRecord, UnsupportedCompression, InvalidTimestamp.
    """
    size = len(batch)
    bound = config.max_message_bytes if most_bytes is None else most_bytes
    if size > bound:
        raise MessageTooLarge(f"a record batch of {size} bytes is over max.message.bytes={bound}")
    if header is None:
        header = _check(batch)
    # Hot path: unpacking a tuple takes a third of the time of named fields.
    _, _, _, _, _, attributes, last_delta, base_timestamp, max_timestamp, producer_id, epoch, first, _ = header
    if attributes & _UNUSUAL:
        _check_unusual(BatchHeader(*header), zstd_allowed=zstd_allowed)
    if config.log_append_time:
        log_append_time(batch, now_ms)
        max_timestamp = now_ms
    elif max_timestamp > now_ms + config.timestamp_after_max_ms:
        raise InvalidTimestamp(f"timestamp {max_timestamp} is more than {config.timestamp_after_max_ms} ms ahead")
    elif 0 <= base_timestamp < now_ms - config.timestamp_before_max_ms:
        raise InvalidTimestamp(f"timestamp {base_timestamp} is more than {config.timestamp_before_max_ms} ms old")
    if attributes & _TRANSACTIONAL:
        transaction = transactional_id or ""
        return Append(
            batch, last_delta + 1, max_timestamp, producer_id, epoch, first, transaction, adds_partition=adds_partition
        )
    return Append(batch, last_delta + 1, max_timestamp, producer_id, epoch, first)


def _check(batch: bytearray | memoryview) -> HeaderFields:
    try:
        return accelerator.check(batch)
    except batch_errors.UnsupportedMagic as error:
        raise UnsupportedFormat(str(error)) from None
    except batch_errors.UnknownCodec as error:
        raise UnsupportedCompression(str(error)) from None
    except batch_errors.InvalidBatch as error:
        raise InvalidRecord(str(error)) from None
    except batch_errors.BatchError as error:
        raise CorruptBatch(str(error)) from None


def _check_unusual(header: BatchHeader, *, zstd_allowed: bool) -> None:
    if header.codec == ZSTD and not zstd_allowed:
        raise UnsupportedCompression("zstd needs Produce version 7 or later")
    if header.timestamp_type == LOG_APPEND_TIME:
        raise InvalidTimestamp("the batch says it has the server's time, which only the server gives")
