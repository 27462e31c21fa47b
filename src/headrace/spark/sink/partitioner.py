"""Which partition a row goes to: the one it names, else its key's as Kafka's Java clients choose it, else any."""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(keys: "pa.Array") -> "np.ndarray[Any, Any]":
    """The hash of each key (binary, no nulls), as `org.apache.kafka.common.utils.Utils.murmur2`; uint32."""
    import numpy as np  # noqa: PLC0415  # comes with pandas; executors that only read do not need it

    validity, offset_buffer, data = keys.buffers()
    del validity
    edges = np.frombuffer(offset_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    sizes = np.diff(edges)
    hashes = np.empty(len(keys), np.uint32)
    # Keys of one length go through the loop together, so its turns are few: as many as the longest key has words.
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
    """`count` bytes from `at` on of each key, as little-endian words."""
    import numpy as np  # noqa: PLC0415

    word = np.zeros(len(starts), np.uint32)
    for index in range(count):
        word |= content[starts + at + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def of_keys(keys: "pa.Array", partitions: int) -> "np.ndarray[Any, Any]":
    """The partition of each key (binary, no nulls)."""
    import numpy as np  # noqa: PLC0415

    return ((murmur2(keys) & np.uint32(_POSITIVE)) % np.uint32(partitions)).astype(np.int64)
