"""Messages of a REST API in Python: those of an answer out of batches, and the entries of a response to published ones.

`_compiled.Messages` and `_compiled.publish` write the same bytes. The form is OCI Streaming's Message: key and value in
base64, no key as null. A record without value gets the empty one, because the field is required there; headers are left
out, for the form has no place for them.
"""

from base64 import b64encode
from struct import Struct
from typing import Any

from headrace.records.fallback import columns
from headrace.records.fallback.header import Buffer

LATEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, where the format of times ends."""
_DAY_MS = 86_400_000
MOST_MESSAGE = 16 << 20
"""Bytes of a message's key and value, unless somebody says otherwise."""


def time_text(time_ms: int) -> str:
    """RFC 3339 with milliseconds; times before 1970 (-1: none) and after 9999 are told as the nearest that can be."""
    days, ms = divmod(min(max(time_ms, 0), LATEST_MS), _DAY_MS)
    # In years that begin in March leap days are the last ones, and a straight line tells the months' lengths.
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
    """A JSON array that grows by records until it has enough of them: `write` batches, then `take`."""

    def __init__(self, most_count: int, most_bytes: int, most_message: int = MOST_MESSAGE) -> None:
        """Start empty.

        Args:
            most_count: messages that it may have.
            most_bytes: bytes of keys and values together; the first message may have more.
            most_message: bytes of key and value of one message; larger ones are passed over.
        """
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
        """Take the records of a batch from `first_offset` on, as far as there is room.

        Args:
            payload: the decompressed records section, with the next five arguments as `records.walk` has them.
            count: records in it.
            last_offset_delta: of the batch.
            base_offset: where it lies.
            base_timestamp: of the batch, milliseconds.
            fixed_timestamp: what all records have (log append time); None: each has its own.
            first_offset: records before are passed over.
            not_before: records with an earlier timestamp (ms) are passed over; None: none are.
            prefix: what each message begins with, up to and with `"key":`.

        Returns:
            The offset after the last record that was taken or passed over; behind the batch when nothing is left.

        Raises:
            CorruptBatch: the records cannot be read. Nothing of this batch was taken.
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
        """Add one message, or pass it over when it is too large; False when there is no room."""
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
        """The array; it is empty then."""
        taken, self._texts = self._texts, []
        self.count = self.size = 0
        self.full = self._most_count <= 0
        return b"[%b]" % b",".join(taken)


Share = tuple[int, bytearray, int]
"""A partition, its batch, and the bytes of its keys and values."""
Shares = tuple[bytes, list[Share]]
"""The partition of each message in native int32 (-1: left out), and what goes to each partition, in their order."""
Told = tuple[bytes, int, bytes]
"""What an entry says before the offset, the first one's offset, and what it says after; -1: only what is before."""

_PLACE = Struct("=i")


def publish(
    body: Buffer, partitions: int, now_ms: int, seed: int, left_out: int, most_value: int, most_total: int, /
) -> Shares | None:
    """Nothing is read here: a body is for a JSON decoder, and then for `headrace.records.partition_batches.share`."""
    return None


def receipts(places: Buffer, told: list[Told | None], head: bytes, tail: bytes, /) -> bytes:
    """An entry for each place, with commas between; raises ValueError for a place that nothing is told about.

    Args:
        places: as `headrace.records.partition_batches.share` gives them.
        told: what is said of place n at index n + 1; at index 0 what is said of those left out.
        head: what stands before all entries.
        tail: what stands after them.
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
