"""Messages of a REST API in Python; `_compiled` writes the same bytes.

As in OCI Streaming's Message, key and value are base64, and a missing key is null. A missing value is empty, as the
field is required. There are no headers.
"""

from base64 import b64encode
from struct import Struct
from typing import Any

from headrace.records.fallback import columns
from headrace.records.fallback.header import Buffer

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last one of the time format."""
_DAY_MS = 86_400_000
MOST_MESSAGE = 16 << 20
"""Default maximum bytes of a message's key and value."""


def time_text(time_ms: int) -> str:
    """Return RFC 3339 with milliseconds, limited to 1970 (also for -1: none) to 9999."""
    days, ms = divmod(min(max(time_ms, 0), LATEST_MS), _DAY_MS)
    # If years begin in March, leap days are last, and month lengths are linear.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += 400 * era + (month > 9)
    month += 3 if month < 10 else -9
    seconds, ms = divmod(ms, 1000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"
    return f"{year:04}-{month:02}-{day:02}T{clock}Z"


class PureMessages:
    """A JSON array of limited size: `write` batches, then `take`."""

    def __init__(self, most_count: int, most_bytes: int, most_message: int = MOST_MESSAGE) -> None:
        """The first message may exceed `most_bytes`. Messages above `most_message` bytes are skipped."""
        self._most_count = most_count
        self._most_bytes = most_bytes
        self._most_message = most_message
        self.passed_over = 0
        self._texts: list[bytes] = []
        self.count = 0
        self.size = 0
        self.full = most_count <= 0

    def write(
        self,
        payload: Buffer,
        count: int,
        last_offset_delta: int,
        base_offset: int,
        base_timestamp: int,
        fixed_timestamp: int | None,
        first_offset: int,
        not_before: int | None,
        prefix: bytes,
        /,
    ) -> int:
        """Add the records of a batch from `first_offset` and `not_before` (ms) on, and return the next offset.

        `prefix` is the start of each message, up to `"key":`. For the batch, see `records.walk`. After CorruptBatch,
        none of it was added.
        """
        before = len(self._texts), self.count, self.size, self.full, self.passed_over
        source = columns.read(payload, count, last_offset_delta, base_offset, base_timestamp, fixed_timestamp)
        try:
            for record in source:
                if record.offset < first_offset or (not_before is not None and record.timestamp < not_before):
                    continue
                if not self._put(record, prefix):
                    return int(record.offset)
        except Exception:
            del self._texts[before[0] :]
            _, self.count, self.size, self.full, self.passed_over = before
            raise
        return base_offset + last_offset_delta + 1

    def _put(self, record: Any, prefix: bytes) -> bool:
        size = len(record.key or b"") + len(record.value or b"")
        if size > self._most_message:
            self.passed_over += 1
            return True
        if self.count >= self._most_count or (self.count and self.size + size > self._most_bytes):
            self.full = True
            return False
        key = b"null" if record.key is None else b'"%b"' % b64encode(record.key)
        tail = (b64encode(record.value or b""), record.offset, time_text(record.timestamp).encode())
        self._texts.append(prefix + key + b',"value":"%b","offset":%d,"timestamp":"%b"}' % tail)
        self.count += 1
        self.size += size
        self.full = self.count >= self._most_count or self.size >= self._most_bytes
        return True

    def take(self) -> bytes:
        """Remove and return the array."""
        taken, self._texts = self._texts, []
        self.count = self.size = 0
        self.full = self._most_count <= 0
        return b"[%b]" % b",".join(taken)


Share = tuple[int, bytearray, int]
"""Partition, batch, and bytes of keys and values."""
Shares = tuple[bytes, list[Share]]
"""The partition of each message in native int32 (-1: left out), and the batches by partition."""
Told = tuple[bytes, int, bytes]
"""The text of an entry before its offset, the first offset, and the text after it. With -1, only the first text counts.
"""

_PLACE = Struct("=i")


def publish(
    body: Buffer, partitions: int, now_ms: int, seed: int, left_out: int, most_value: int, most_total: int, /
) -> Shares | None:
    """Return None: decode the body as JSON, and use `headrace.records.partition_batches.share`."""
    return None


def receipts(places: Buffer, told: list[Told | None], head: bytes, tail: bytes, /) -> bytes:
    """Return an entry for each place. Raises ValueError for a place without a result.

    `told[n + 1]` has the texts for place n, and `told[0]` those for left-out messages. `head` and `tail` surround all
    entries.
    """
    texts = []
    offsets = [-1 if each is None else each[1] for each in told]
    for (place,) in _PLACE.iter_unpack(places):
        each = told[place + 1] if -1 <= place < len(told) - 1 else None
        if each is None:
            raise ValueError("receipts: a place without a result")
        if each[1] < 0:
            texts.append(each[0])
        else:
            texts.append(b"%b%d%b" % (each[0], offsets[place + 1], each[2]))
            offsets[place + 1] += 1
    return b"%b%b%b" % (head, b",".join(texts), tail)
