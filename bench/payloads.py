"""What the load is made of: values of an exact size, half of each random, so that codecs shrink them like events."""

import random

from headrace.records.build import build

_NOW_MS = 1_700_000_000_000


def values(size: int, count: int) -> list[bytes]:
    """`count` different values of `size` bytes, the same in every run."""
    chance = random.Random(size)
    words = b'{"carrier":"UA","origin":"EWR","destination":"SFO","delay_min":'
    text = (words * (size // len(words) + 1))[: size - size // 2]
    return [chance.randbytes(size // 2) + text for _ in range(count)]


def batch(size: int, count: int, codec: int) -> bytes:
    """A record batch of `count` such values, as a producer sends it."""
    return bytes(build([(None, value, _NOW_MS, ()) for value in values(size, count)], codec=codec))
