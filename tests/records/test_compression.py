"""The codecs: what other writers send is read, what is written others read, and nothing grows beyond its limit."""

import gzip

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec

from headrace.records.compression import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from headrace.records.errors import BatchError, BatchTooLarge, CorruptBatch, UnknownCodec

COMPRESSED = [GZIP, SNAPPY, LZ4, ZSTD]
TEXT = b'{"carrier":"UA","flight":1545}' * 7_000


@pytest.mark.parametrize("codec", CODECS.values())
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(1_000_000)], ids=["empty", "one", "text", "zeros"])
def test_round_trip(codec: int, data: bytes) -> None:
    for kind in (bytes, bytearray, memoryview):
        assert decompress(codec, compress(codec, kind(data))) == data


@pytest.mark.parametrize(
    ("codec", "read", "write"),
    [
        (GZIP, aiokafka_codec.gzip_decode, aiokafka_codec.gzip_encode),
        (SNAPPY, aiokafka_codec.snappy_decode, aiokafka_codec.snappy_encode),
        (LZ4, aiokafka_codec.lz4_decode, aiokafka_codec.lz4_encode),
        (ZSTD, aiokafka_codec.zstd_decode, aiokafka_codec.zstd_encode),
    ],
)
def test_another_implementation_reads_ours_and_we_read_its(codec: int, read: object, write: object) -> None:
    assert callable(read)
    assert callable(write)
    assert bytes(read(bytes(compress(codec, TEXT)))) == TEXT
    assert decompress(codec, bytes(write(TEXT))) == TEXT


def test_snappy_is_read_raw_as_librdkafka_writes_it() -> None:
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


@pytest.mark.parametrize("block", [b"\0", b"\1\0x"], ids=["empty", "a byte"])
def test_snappy_in_many_blocks_of_next_to_nothing_is_not_read(block: bytes) -> None:
    """Each takes time, and adds nothing to what the limit counts."""
    begin = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2
    with pytest.raises(BatchTooLarge, match="snappy blocks"):
        decompress(SNAPPY, begin + (len(block).to_bytes(4) + block) * 200_000, 16 << 20)


def test_snappy_is_written_in_javas_frames() -> None:
    assert bytes(compress(SNAPPY, TEXT)[:16]) == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def test_lz4_blocks_do_not_refer_to_each_other() -> None:
    flags = compress(LZ4, TEXT)[4]
    assert flags & 0b0010_0000, "Java's reader refuses linked blocks"


def test_gzip_of_the_standard_library() -> None:
    assert decompress(GZIP, gzip.compress(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_limit_is_exact_and_cheap_to_hit(codec: int) -> None:
    bomb = compress(codec, bytes(3_000_000))
    assert len(decompress(codec, bomb, limit=3_000_000)) == 3_000_000
    for limit in (2_999_999, 100_000, 1, 0):
        with pytest.raises(BatchTooLarge):
            decompress(codec, bomb, limit=limit)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_broken_data_give_the_documented_errors(codec: int) -> None:
    data = bytes(compress(codec, TEXT[:300]))
    with pytest.raises((CorruptBatch, BatchTooLarge)):
        decompress(codec, b"\xff not what the codec writes", limit=1_000)
    for size in range(len(data)):
        try:
            decompress(codec, data[:size], limit=100_000)
        except BatchError:
            continue
        assert codec == SNAPPY or size == 0, "a stream cut short was read"
    for position in range(len(data)):
        for value in (0, 255, data[position] ^ 1):
            try:
                decompress(codec, data[:position] + bytes([value]) + data[position + 1 :], limit=100_000)
            except BatchError:
                continue


def test_codecs_that_do_not_exist() -> None:
    for codec in (5, 6, 7, -1):
        with pytest.raises(UnknownCodec):
            decompress(codec, b"")
        with pytest.raises(UnknownCodec):
            compress(codec, b"")


def test_uncompressed_data_are_not_copied() -> None:
    view = memoryview(TEXT)
    assert decompress(NONE, view) is view
