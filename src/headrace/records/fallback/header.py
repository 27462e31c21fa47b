"""Header check and CRC without the C extension. Tests compare both.

google-crc32c is imported at the first use, as the extension does not need it.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct

from headrace.records.errors import CorruptBatch, InvalidBatch, UnknownCodec, UnsupportedMagic

Buffer = bytes | bytearray | memoryview
HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

HEADER_SIZE = 61
_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_EPOCH_AT = 12
_LENGTH_AND_MAGIC = Struct(">8xi4xb")
_BEFORE_LENGTH_ENDS = 12  # bytes that batch_length does not count
_CRC_STARTS = 21
_LAST_CODEC = 4
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


def crc32c(data: Buffer, crc: int = 0, /) -> int:
    """Return the CRC-32C; `crc` is the value so far. google-crc32c takes `bytes` only."""
    return _extend()(crc, data if isinstance(data, bytes) else bytes(data))


@cache
def _extend() -> Callable[[int, bytes], int]:
    import google_crc32c  # noqa: PLC0415  # see above

    found: Callable[[int, bytes], int] = google_crc32c.extend
    return found


def peek(batch: Buffer, /) -> HeaderFields:
    """See `records.batch.peek`."""
    size = len(batch)
    if size <= 16:
        raise CorruptBatch(f"{size} bytes are no record batch")
    length, magic = _LENGTH_AND_MAGIC.unpack_from(batch)
    if magic in {0, 1}:
        raise UnsupportedMagic(f"message format with magic {magic}; only record batches (magic 2) are taken")
    if magic != 2:
        raise CorruptBatch(f"magic {magic} does not exist")
    if size < HEADER_SIZE or length < HEADER_SIZE - _BEFORE_LENGTH_ENDS:
        raise CorruptBatch(f"{size} bytes with batch length {length}: shorter than a batch header")
    if length + _BEFORE_LENGTH_ENDS > size:
        raise CorruptBatch(f"batch length {length} wants {length + _BEFORE_LENGTH_ENDS} bytes, there are {size}")
    if length + _BEFORE_LENGTH_ENDS < size:
        raise InvalidBatch(f"{size - length - _BEFORE_LENGTH_ENDS} bytes after the batch; exactly one batch is taken")
    return _HEADER.unpack_from(batch)


def fields(header: Buffer, /) -> HeaderFields:
    """Return the 13 fields of a header, unchecked."""
    return _HEADER.unpack_from(header)


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int, /) -> None:
    """Write base offset and leader epoch into a batch."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _EPOCH_AT, leader_epoch)


def check(batch: Buffer, /) -> HeaderFields:
    """See `records.batch.check`."""
    fields = peek(batch)
    _, _, _, _, crc, attributes, last_offset_delta, _, _, producer_id, producer_epoch, base_sequence, count = fields
    found = crc32c(memoryview(batch)[_CRC_STARTS:])
    if crc != found:
        raise CorruptBatch(f"CRC {crc:#010x} in the header, {found:#010x} over the bytes")
    if count <= 0 or last_offset_delta != count - 1:
        raise InvalidBatch(f"{count} records with last offset delta {last_offset_delta}")
    if attributes & _CONTROL:
        raise InvalidBatch("the control bit is set; control batches are the broker's")
    if attributes & 7 > _LAST_CODEC:
        raise UnknownCodec(f"compression codec {attributes & 7} does not exist")
    if producer_id < -1 or (producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0)):
        raise InvalidBatch(f"producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")
    if attributes & _TRANSACTIONAL and producer_id < 0:
        raise InvalidBatch("a transactional batch without producer id")
    return fields
