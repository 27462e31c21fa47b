"""The answer of a GetMessages while it is being read: batches in, JSON out, no record touched in Python."""

import msgspec
import structlog

from headrace.broker.cache import Buffer
from headrace.broker.log import Partition
from headrace.records import native
from headrace.records.batch import peek
from headrace.records.errors import BatchError
from headrace.records.walk import fixed_timestamp, payload

_GUESS = 1024
"""Bytes of a message, until there is one; too low a guess costs another turn."""
_AROUND_RECORD = 32
_AROUND_BATCHES = 4096
_log = structlog.get_logger("headrace.oci")


class MessageSink:
    """Implements `headrace.broker.reading.Sink`."""

    def __init__(self, stream_name: str, limit: int, most_bytes: int) -> None:
        """Start empty.

        Args:
            stream_name: what each message tells as its stream.
            limit: the most messages.
            most_bytes: the most bytes of keys and values; one message is taken however large it is.
        """
        self._limit = limit
        self._most_bytes = most_bytes
        self._name = msgspec.json.encode(stream_name)
        self._messages = native.open_messages(limit, most_bytes)

    def room(self) -> int:
        """Bytes it still wants; 0: full. For a few messages not more is read than they may take."""
        messages = self._messages
        if messages.full:
            return 0
        usual = messages.size // messages.count if messages.count else _GUESS
        wanted = (self._limit - messages.count) * (usual + _AROUND_RECORD) + _AROUND_BATCHES
        return max(1, min(self._most_bytes - messages.size, wanted))

    def take(self, partition: Partition, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        """Take records from `offset` on; see `Sink.take`."""
        prefix = b'{"stream":%b,"partition":"%d","key":' % (self._name, partition.index)
        for batch in batches:
            header = peek(batch)
            following = header.base_offset + header.span
            if not header.is_control:
                try:
                    following = self._messages.write(
                        payload(header, batch),
                        header.count,
                        header.last_offset_delta,
                        header.base_offset,
                        header.base_timestamp,
                        fixed_timestamp(header),
                        offset,
                        not_before_ms,
                        prefix,
                    )
                except BatchError as error:
                    # A client stored it, with a right checksum over records that nobody can read. Stopping here would
                    # stop every reader for ever.
                    _log.error(
                        "records passed over", topic=partition.topic, partition=partition.index, reason=str(error)
                    )
            offset = max(offset, following)
            if self._messages.full:
                break
        return offset

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
