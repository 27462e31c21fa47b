"""The answer of a GetMessages while it is being read: batches in, JSON out, no record touched in Python."""

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
"""Bytes that one answer decompresses of all batches together. Then it ends with what it has, and the cursor goes on."""

_GUESS = 1024
"""Bytes of a message, until there is one; too low a guess costs another turn."""
_AROUND_RECORD = 32
_AROUND_BATCHES = 4096
_LEAST_COST = 2048
"""Bytes that count for a batch even if it is empty: so long is it looked at."""
_MESSAGE_COST = 100
"""Bytes that count for a message at least: so much JSON is written around each, however small it is."""
_COMPRESSED = 64 << 10
"""Bytes of a compressed batch that is tried on the event loop."""
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

        Args:
            stream_name: what each message tells as its stream.
            limit: the most messages.
            most_bytes: the most bytes of keys and values; one message is taken however large it is, up to 16 MiB
                (`records.fallback.messages.MOST_MESSAGE`).
            decompression: where large batches are decompressed.
            tracer: is told of the batches that messages are taken from; None: nobody is.
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
        """Whether nothing more goes into this answer."""
        return self._messages.full or self._decompressed >= MOST_DECOMPRESSED

    def room(self) -> int:
        """Bytes it still wants; 0: full. For a few messages not more is read than they may take."""
        messages = self._messages
        if self.full:
            return 0
        usual = messages.size // messages.count if messages.count else _GUESS
        wanted = (self._limit - messages.count) * (usual + _AROUND_RECORD) + _AROUND_BATCHES
        return max(1, min(self._most_bytes - messages.size, wanted))

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        """Take records from `offset` on; see `Sink.take`."""
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
                    # A client stored it, with a right checksum over records that nobody can read. Stopping here would
                    # stop every reader for ever.
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
        """Write a batch's messages: here if that is quick, else in a thread. Raises BatchError."""
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
        """Write messages of a batch that decompresses to at most `limit` bytes; the offset to go on from."""
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
            del records  # which an error would keep for as long as somebody has that

    @property
    def count(self) -> int:
        """Messages so far."""
        return self._messages.count

    @property
    def size(self) -> int:
        """Bytes of their keys and values."""
        return self._messages.size

    def answer(self) -> bytes:
        """The messages as a JSON array."""
        return self._messages.take()


def _passed_over(partition: Source, reason: str) -> None:
    _log.error("records passed over", topic=partition.topic, partition=partition.index, reason=reason)
