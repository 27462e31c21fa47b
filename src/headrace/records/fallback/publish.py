"""What `_compiled` does for messages that a REST API publishes, without it: nothing about bodies, and the answer."""

from struct import Struct

from headrace.records.fallback.header import Buffer

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
            raise ValueError("receipts: a place that nothing is told about")
        if each[1] < 0:
            texts.append(each[0])
        else:
            texts.append(b"%b%d%b" % (each[0], offsets[place + 1], each[2]))
            offsets[place + 1] += 1
    return b"%b%b%b" % (head, b",".join(texts), tail)
