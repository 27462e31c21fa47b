"""Kafka's partitioner for records with a key: for one key, and for a column of keys.

Source: `org.apache.kafka.common.utils.Utils.murmur2` and `BuiltInPartitioner.partitionForKey`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur2(key: bytes) -> int:
    """Return the uint32 hash of a key. For single keys: it takes about 1 µs for each 4 bytes."""
    found = _SEED ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        found = found * _M & _MASK ^ word
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    found = (found ^ found >> 13) * _M & _MASK
    return found ^ found >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Java producers choose for a key by default."""
    return (murmur2(key) & _POSITIVE) % partitions


def murmur2_of_each(keys: "pa.Array") -> "np.ndarray[Any, Any]":
    """Return the uint32 hash of each key (binary, no nulls)."""
    import numpy as np  # noqa: PLC0415  # a server has none

    validity, offset_buffer, data = keys.buffers()
    del validity
    edges = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    sizes = np.diff(edges)
    hashes = np.empty(len(keys), np.uint32)
    # Keys of equal length together, with one iteration per word.
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        hashes[rows] = _equal(content, edges[rows], int(size))
    return hashes


def _equal(content: "np.ndarray[Any, Any]", starts: "np.ndarray[Any, Any]", size: int) -> "np.ndarray[Any, Any]":
    import numpy as np  # noqa: PLC0415

    m = np.uint32(_M)
    found = np.full(len(starts), np.uint32(_SEED ^ size), np.uint32)
    whole = size & ~3
    with np.errstate(over="ignore"):
        for at in range(0, whole, 4):
            word = _bytes(content, starts, at, 4)
            word *= m
            word ^= word >> np.uint32(24)
            word *= m
            found *= m
            found ^= word
        if size > whole:
            found ^= _bytes(content, starts, whole, size - whole)
            found *= m
        found ^= found >> np.uint32(13)
        found *= m
        found ^= found >> np.uint32(15)
    return found


def _bytes(
    content: "np.ndarray[Any, Any]", starts: "np.ndarray[Any, Any]", at: int, count: int
) -> "np.ndarray[Any, Any]":
    import numpy as np  # noqa: PLC0415

    word = np.zeros(len(starts), np.uint32)
    for index in range(count):
        word |= content[starts + at + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def partitions_of(keys: "pa.Array", partitions: int) -> "np.ndarray[Any, Any]":
    """Return the partition of each key (binary, no nulls)."""
    import numpy as np  # noqa: PLC0415

    return ((murmur2_of_each(keys) & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int64)
