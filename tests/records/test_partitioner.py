"""The partitioner for keys: Kafka's test vectors, and the vectorized one of the Spark sink."""

import pyarrow as pa
import pytest

from headrace.records.partitioner import murmur2, partition_of
from headrace.spark.sink import sink

# From Kafka's UtilsTest.testMurmur2, where they are signed.
VECTORS = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}  # fmt: skip


@pytest.mark.parametrize("key", VECTORS)
def test_the_hash_is_kafkas(key: bytes) -> None:
    assert murmur2(key) == VECTORS[key] % (1 << 32)


def test_a_key_has_the_partition_that_the_spark_sink_chooses() -> None:
    keys = [bytes(range(256 - size, 256)) for size in range(256)]
    expected = sink.of_keys(pa.array(keys, pa.binary()), 7).tolist()
    assert [partition_of(key, 7) for key in keys] == expected
