"""Convert record batches to the JSON of a GetMessages response, without Python objects for records."""

from functools import partial

import msgspec
import structlog

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.source import Source
from headrace.broker.runtime.decompression import A_TURN, HERE, MOST, USUAL, Decompression
from headrace.broker.topics.live import BatchTracer
from headrace.records import accelerator
from headrace.records.batch import BatchHeader, peek
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.records.walk import fixed_timestamp, payload

MOST_DECOMPRESSED = MOST
"""Maximum bytes that one response decompresses. The response then ends early."""

_GUESS = 1024
"""Estimated bytes per message before the first one. A low estimate costs another read."""
_AROUND_RECORD = 32
_AROUND_BATCHES = 4096
_LEAST_COST = 2048
"""Minimum bytes charged per batch, even if it is empty."""
_MESSAGE_COST = 100
"""Minimum bytes charged per message, for the JSON around it."""
_COMPRESSED = 64 << 10
"""Maximum bytes of a compressed batch that is decompressed on the event loop."""
_log = structlog.get_logger("headrace.oci.api")


class MessageSink:
    """Implements `headrace.broker.partition.read.Sink`."""

    def __init__(
        self,
        stream_name: str,
        limit: int,
        most_bytes: int,
        decompression: Decompression,
        tracer: BatchTracer | None = None,
    ) -> None:
        """Start empty.

        The first message may exceed `most_bytes` of keys and values, up to 16 MiB.
        """
        self._tracer = tracer
        self._limit = limit
        self._most_bytes = most_bytes
        self._decompression = decompression
        self._name = msgspec.json.encode(stream_name)
        self._messages = accelerator.open_messages(limit, most_bytes)
        self._decompressed = 0

    @property
    def full(self) -> bool:
        """Whether the response is full."""
        return self._messages.full or self._decompressed >= MOST_DECOMPRESSED

    def room(self) -> int:
        """Bytes that still fit; 0: full. A low message limit also lowers this number."""
        messages = self._messages
        if self.full:
            return 0
        usual = messages.size // messages.count if messages.count else _GUESS
        wanted = (self._limit - messages.count) * (usual + _AROUND_RECORD) + _AROUND_BATCHES
        return max(1, min(self._most_bytes - messages.size, wanted))

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        """See `Sink.take`."""
        prefix = b'{"stream":%b,"partition":"%d","key":' % (self._name, partition.index)
        for batch in batches:
            header = peek(batch)
            following = header.base_offset + header.span
            if not header.is_control:
                write = partial(self._write, header, batch, offset, not_before_ms, prefix)
                passed_over = self._messages.passed_over
                try:
                    following = await self._read(header, write)
                except BatchError as error:
                    # A client stored records that cannot be decoded, with a valid checksum. An error would block
                    # every consumer.
                    _passed_over(partition, str(error))
                if self._messages.passed_over > passed_over:
                    _passed_over(partition, f"{self._messages.passed_over - passed_over} are too large for an answer")
            offset = max(offset, following)
            if self._tracer is not None:
                self._tracer.handed_out(partition.topic, partition.index, [batch])
            if self.full:
                break
        return offset

    async def _read(self, header: BatchHeader, write: "partial[int]") -> int:
        if header.size <= (_COMPRESSED if header.codec else A_TURN):
            await self._decompression.turn()
            decompressed, count = self._decompressed, self._messages.count
            try:
                return write(HERE)
            except BatchTooLarge:
                pass
            finally:
                messages = (self._messages.count - count) * _MESSAGE_COST
                self._decompression.count(max(self._decompressed - decompressed, messages, _LEAST_COST))
        elif not header.codec:
            return await self._decompression.usual(partial(write, header.size))
        try:
            return await self._decompression.usual(partial(write, USUAL))
        except BatchTooLarge:
            return await self._decompression.large(partial(write, MOST))

    def _write(
        self, header: BatchHeader, batch: Buffer, offset: int, not_before_ms: int | None, prefix: bytes, limit: int
    ) -> int:
        decompressed = limit
        try:
            records = payload(header, batch, limit)
            decompressed = len(records)
        finally:
            self._decompressed += decompressed
        try:
            return self._messages.write(
                records,
                header.count,
                header.last_offset_delta,
                header.base_offset,
                header.base_timestamp,
                fixed_timestamp(header),
                offset,
                not_before_ms,
                prefix,
            )
        finally:
            del records  # an error would keep the batch in memory

    @property
    def count(self) -> int:
        """Number of messages."""
        return self._messages.count

    @property
    def size(self) -> int:
        """Bytes of their keys and values."""
        return self._messages.size

    def answer(self) -> bytes:
        """Return the messages as a JSON array."""
        return self._messages.take()


def _passed_over(partition: Source, reason: str) -> None:
    _log.error("records skipped", topic=partition.topic, partition=partition.index, reason=reason)
