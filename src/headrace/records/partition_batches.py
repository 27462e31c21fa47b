"""Distribute messages of a REST API to partitions, and build batches.

`_compiled.publish` does the same in one pass for common bodies.
"""

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from headrace.records.build import build
from headrace.records.fallback.messages import Shares

_PLACE = Struct("=i")
_BITS = 2**64


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key: CRC-32 modulo partitions, as in librdkafka's default partitioner."""
    return crc32(key) % partitions


def share(
    messages: Sequence[tuple[bytes | None, bytes]], partitions: int, now_ms: int, seed: int, left_out: int
) -> Shares:
    """Distribute messages (key, value), and build a batch for each partition.

    `seed` (64 bits) determines the partitions of messages without a key. The first `left_out` messages are skipped.
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
    """Return state and number of SplitMix64."""
    state = (state + 0x9E3779B97F4A7C15) % _BITS
    number = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % _BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB % _BITS
    return state, number ^ number >> 31
