"""Bytes that members of protocol type `consumer` exchange: subscriptions and assignments.

A subscription is big-endian: version int16, topic count int32, topics with an int16 length, user data with an int32
length (-1: none). An assignment has after each topic an int32 count and int32 partitions.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

CONSUMER_PROTOCOL = "consumer"
"""Protocol type of members that read topics."""
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_NUMBER = struct.Struct(">i")
_NO_USER_DATA = _NUMBER.pack(-1)
_MOST_TOPICS = 20_000
"""Maximum topics of a subscription, and of all of a group's."""
_MOST_READ = 100_000
"""Maximum names read of a group's subscriptions: reading blocks the event loop."""


def topics_of(metadata: bytes) -> list[str] | None:
    """Return the topics of a subscription. None: invalid or too many. Later bytes are ignored."""
    found = _read(metadata)
    return None if found is None else found[0]


def _read(metadata: bytes) -> tuple[list[str], bytes] | None:
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= _MOST_TOPICS:
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
    return topics, metadata[:position]


def partitions_of(assigned: bytes) -> dict[str, list[int]] | None:
    """Return an assignment's partitions by topic. None: invalid."""
    return None if assigned[:1] >= b"\x80" else _partitions(assigned, _LENGTH.size)


def owned_partitions(metadata: bytes) -> dict[str, list[int]]:
    """Return what a subscription says that the member has. Version 0 and eager members say nothing."""
    found = _read(metadata)
    if found is None or metadata[:2] == b"\0\0":
        return {}
    position = len(found[1])
    try:
        (size,) = _NUMBER.unpack_from(metadata, position)
    except struct.error:
        return {}
    return _partitions(metadata, position + _NUMBER.size + max(size, 0)) or {}


def _partitions(assigned: bytes, position: int) -> dict[str, list[int]] | None:
    try:
        (count,) = _NUMBER.unpack_from(assigned, position)
        if not 0 <= count <= len(assigned):
            return None
        position += _NUMBER.size
        found: dict[str, list[int]] = {}
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(assigned, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(assigned):
                return None
            topic = assigned[position : position + length].decode()
            (many,) = _NUMBER.unpack_from(assigned, position + length)
            position += length + _NUMBER.size
            if not 0 <= many * 4 <= len(assigned) - position:
                return None
            found.setdefault(topic, []).extend(struct.unpack_from(f">{many}i", assigned, position))
            position += many * 4
    except (struct.error, UnicodeDecodeError):
        return None
    return found


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all subscriptions. None: one is unreadable, and may include any topic."""
    topics: set[str] = set()
    names = 0
    head: bytes | None = None
    # Most members have the same topics, but differ in later bytes such as owned partitions.
    for each in set(metadata):
        if head is not None and each.startswith(head):
            continue
        found = _read(each)
        if found is None:
            return None
        read, head = found
        names += len(read)
        topics.update(read)
        if names > _MOST_READ or len(topics) > _MOST_TOPICS:
            return None
    return frozenset(topics)


def subscription(topics: Sequence[str]) -> bytes:
    """Return the metadata of a consumer of these topics (version 0)."""
    return _HEAD.pack(0, len(topics)) + b"".join(_named(topic) for topic in topics) + _NO_USER_DATA


def assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """Return the assignment of partitions by topic (version 0)."""
    parts = [_HEAD.pack(0, len(partitions))]
    for topic, indexes in partitions.items():
        parts += [_named(topic), _NUMBER.pack(len(indexes)), *(_NUMBER.pack(index) for index in indexes)]
    return b"".join(parts) + _NO_USER_DATA


def _named(topic: str) -> bytes:
    encoded = topic.encode()
    return _LENGTH.pack(len(encoded)) + encoded
