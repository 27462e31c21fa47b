"""Messages of a REST door shared out among partitions and built into batches, in Python.

`_native.publish` does the same in one pass over a body of the usual shape, and says None for any other.
"""

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from headrace.records.build import build
from headrace.records.plain import Buffer

Share = tuple[int, bytearray, int]
"""A partition, its batch, and the bytes of its keys and values."""
Shares = tuple[bytes, list[Share]]
"""The partition of each message in native int32 (-1: left out), and what goes to each partition, in their order."""
Told = tuple[bytes, int, bytes]
"""What an entry says before the offset, the first one's offset, and what it says after; -1: only what is before."""

_PLACE = Struct("=i")
_BITS = 2**64


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo partitions, as librdkafka's default partitioner has it."""
    return crc32(key) % partitions


def share(
    messages: Sequence[tuple[bytes | None, bytes]], partitions: int, now_ms: int, seed: int, left_out: int
) -> Shares:
    """Share messages (key, value) out, and build a batch for each partition that has some.

    Args:
        messages: in the order of the request.
        partitions: how many there are.
        now_ms: the time of every message.
        seed: 64 bits that decide about messages without key.
        left_out: so many of the first messages go nowhere.
    """
    places = []
    by_place: dict[int, list[tuple[bytes | None, bytes]]] = {}
    for number, message in enumerate(messages):
        key = message[0]
        place = 0
        if number < left_out:
            place = -1
        elif partitions > 1:
            if key is None:
                seed, chance = _next_random(seed)
                place = chance % partitions
            else:
                place = partition_of(key, partitions)
        places.append(_PLACE.pack(place))
        if place >= 0:
            by_place.setdefault(place, []).append(message)
    shares = [
        (
            place,
            build([(key, value, now_ms, ()) for key, value in by_place[place]]),
            sum(len(key or b"") + len(value) for key, value in by_place[place]),
        )
        for place in sorted(by_place)
    ]
    return b"".join(places), shares


def _next_random(state: int) -> tuple[int, int]:
    """SplitMix64: the next state and a number of 64 bits."""
    state = (state + 0x9E3779B97F4A7C15) % _BITS
    number = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB % _BITS
    return state, number ^ number >> 31


def publish(
    body: Buffer, partitions: int, now_ms: int, seed: int, left_out: int, most_value: int, most_total: int, /
) -> Shares | None:
    """Nothing is read here: a body is for a JSON decoder, and then for `share`."""
    return None


def receipts(places: Buffer, told: list[Told | None], /) -> bytes:
    """An entry for each place, with commas between; raises ValueError for a place that nothing is told about.

    Args:
        places: as `share` gives them.
        told: what is said of place n at index n + 1; at index 0 what is said of those left out.
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
    return b",".join(texts)
