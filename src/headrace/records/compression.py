"""Codecs of a record batch.

Every reader passes a limit, as client data may expand greatly.
"""

from functools import cache
from mmap import mmap
from struct import Struct
from typing import Any

import cramjam

from headrace.records.errors import BatchTooLarge, CorruptBatch, UnknownCodec
from headrace.records.fallback.header import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

LIMIT = 128 * 1024 * 1024
"""Default maximum bytes of a batch's decompressed records."""

_FIRST_GUESS = 8  # times the compressed size; JSON seldom exceeds it
_NEXT_GUESS = 4
_LEAST_BUFFER = 64 * 1024
_LARGE_BUFFER = 4 * 1024 * 1024
# Java's snappy stream: a header, then raw snappy blocks after their lengths. librdkafka writes raw snappy.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01" * 2
_XERIAL_BLOCK = 32 * 1024
_LEAST_BLOCK = 1024
"""Minimum size that a block counts as. Writers create smaller ones only at the end."""
_INT32 = Struct(">i")


def decompress(codec: int, data: Buffer, limit: int = LIMIT) -> Buffer:
    """Return the decompressed records section of a batch.

    Raises:
        UnknownCodec: no codec has that number.
        CorruptBatch: the data is invalid.
        BatchTooLarge: the result exceeds `limit` bytes.
    """
    if codec == NONE:
        return data
    if codec == SNAPPY:
        return _decompress_snappy(data, limit)
    if codec == GZIP:
        return _decompress_by(cramjam.gzip, data, limit)
    if codec == LZ4:
        return _decompress_by(cramjam.lz4, data, limit)
    if codec == ZSTD:
        return _decompress_by(cramjam.zstd, data, limit)
    raise UnknownCodec(f"compression codec {codec} does not exist")


def compress(codec: int, data: Buffer) -> Buffer:
    """Compress a records section. Raises UnknownCodec."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if codec == SNAPPY:
        return _close_snappy(data)
    if codec == LZ4:
        # Java reads only independent blocks.
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        compressor.compress(data if isinstance(data, bytes) else bytes(data))
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    raise UnknownCodec(f"compression codec {codec} does not exist")


def _decompress_by(codec: Any, data: Buffer, limit: int) -> memoryview:
    size = min(limit, max(_LEAST_BUFFER, _FIRST_GUESS * len(data)))
    while True:
        if size > _LARGE_BUFFER:
            # Unwritten memory is free there.
            size = limit
        output = _room(size)
        try:
            return memoryview(output)[: codec.decompress_into(data, output)]
        except cramjam.DecompressionError as error:
            del output  # the exception would keep it
            if str(error) != _says_when_full(codec):
                raise CorruptBatch(f"compressed records cannot be read: {error}") from None
            if size >= limit:
                raise BatchTooLarge(f"records take more than {limit} bytes decompressed") from None
            size = min(limit, size * _NEXT_GUESS)


def _room(size: int) -> memoryview:
    """Return an output buffer. Large ones are not zeroed, which would block other threads."""
    return memoryview(bytearray(size) if size <= _LARGE_BUFFER else mmap(-1, size))


@cache
def _says_when_full(codec: Any) -> str:
    try:
        codec.decompress_into(codec.compress(b"two"), bytearray(1))
    except cramjam.DecompressionError as error:
        return str(error)
    raise AssertionError("cramjam wrote beyond its output")


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, limit)
    decompressed = bytearray()
    at = len(_XERIAL_HEADER)
    blocks_left = limit // _LEAST_BLOCK + 1
    while at < len(view):
        if not blocks_left:
            raise BatchTooLarge(f"more snappy blocks than {limit} bytes have in blocks of {_LEAST_BLOCK}")
        blocks_left -= 1
        if at + 4 > len(view):
            raise CorruptBatch("a snappy block ends before its length")
        size = _INT32.unpack_from(view, at)[0]
        at += 4
        if size < 0 or at + size > len(view):
            raise CorruptBatch(f"a snappy block of {size} bytes, {len(view) - at} are there")
        decompressed += _decompress_raw_snappy(view[at : at + size], limit - len(decompressed))
        at += size
    return decompressed


def _decompress_raw_snappy(data: memoryview, limit: int) -> memoryview:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > limit:
            raise BatchTooLarge(f"records take more than the {limit} bytes left, {size} in one snappy block")
        output = _room(size)
        written = cramjam.snappy.decompress_raw_into(data, output)
    except cramjam.DecompressionError as error:
        output = memoryview(b"")
        raise CorruptBatch(f"compressed records cannot be read: {error}") from None
    if written != size:
        raise CorruptBatch(f"a snappy block of {written} bytes said it had {size}")
    return output


def _close_snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)
