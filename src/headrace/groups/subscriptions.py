"""Reads a consumer's subscription, the metadata that a member of protocol type `consumer` brings.

Layout (big-endian): version int16, topic count int32, each topic an int16 length and UTF-8; the rest is not needed.
"""

import struct
from collections.abc import Iterable

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def topics_of(metadata: bytes) -> list[str] | None:
    """The topics of one subscription; None when the bytes are no subscription. What follows them is not looked at."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        position = _HEAD.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions together; None as soon as one cannot be read, for then it may be any topic."""
    topics: set[str] = set()
    for each in metadata:
        found = topics_of(each)
        if found is None:
            return None
        topics.update(found)
    return frozenset(topics)
