"""The partitioner for keys: Kafka's test vectors, and another implementation, for one key and for a column."""

import aiokafka.partitioner
import pyarrow as pa
import pytest

from headrace.records.partitioner import murmur2, murmur2_of_each, partition_of, partitions_of

# From Kafka's UtilsTest.testMurmur2, where they are signed.
VECTORS = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}  # fmt: skip
KEYS = [
    b"", b"a", b"ab", b"abc", b"abcd", b"\xff\x80" * 9, *(bytes(range(256 - size, 256)) for size in range(256)),
    *(b"key-%d" % n for n in range(2_000)),
]  # fmt: skip


@pytest.mark.parametrize("key", VECTORS)
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key] % (1 << 32)


def test_keys_go_where_kafkas_java_clients_send_them() -> None:
    expected = [aiokafka.partitioner.murmur2(key) & 0xFFFFFFFF for key in KEYS]
    column = pa.array([b"skipped", *KEYS], pa.binary()).slice(1)
    assert [murmur2(key) for key in KEYS] == murmur2_of_each(column).tolist() == expected
    partitions = [(each & 0x7FFFFFFF) % 7 for each in expected]
    assert [partition_of(key, 7) for key in KEYS] == partitions_of(column, 7).tolist() == partitions
