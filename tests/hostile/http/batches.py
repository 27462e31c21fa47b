"""Record batches that are small on the wire and large when they are opened."""

import struct

from headrace.records import accelerator
from headrace.records.build import build
from headrace.records.compression import GZIP, ZSTD, compress
from headrace.records.fallback.header import HEADER_SIZE

MIB = 1 << 20
_BODY_AT = 21


def bomb(section: bytes, codec: int, count: int = 1) -> bytearray:
    """A batch with a right checksum over a records section that may be nonsense."""
    batch = build([(None, b"", 1, ())] * count, codec=codec)[:HEADER_SIZE] + compress(codec, section)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, accelerator.crc32c(memoryview(batch)[_BODY_AT:]))
    return batch


def one_large_value(size: int) -> bytearray:
    """One record of zeros."""
    return build([(None, bytes(size), 1, ())], codec=ZSTD)


def zeros(size: int = 100 * MIB) -> bytearray:
    """Opens to zeros, which are no records."""
    return bomb(bytes(size), ZSTD)


def many_records(count: int, codec: int = ZSTD) -> bytearray:
    """Records of a few bytes."""
    return build([(None, b"", 1, ())] * count, codec=codec)


def headers(count: int) -> bytearray:
    """One record with many headers."""
    return build([(None, b"", 1, (("", b""),) * count)], codec=ZSTD)


def spread(size: int) -> bytearray:
    """Opens to records of a mebibyte each."""
    return build([(None, bytes(MIB), 1, ())] * (size // MIB), codec=GZIP)
