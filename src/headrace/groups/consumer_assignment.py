"""Reads a consumer's assignment, which the leader of a classic group makes for each member.

Layout (big-endian): version int16, topic count int32, each topic an int16 length and UTF-8 and an array (int32 count)
of int32 partitions; what follows is the clients' own.
"""

import struct

from headrace.groups.model import TopicPartition

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_PARTITION_SIZE = 4


def partitions_of(assignment: bytes) -> frozenset[TopicPartition]:
    """The partitions of one assignment; none when the bytes are no assignment."""
    found: set[TopicPartition] = set()
    try:
        version, topics = _HEAD.unpack_from(assignment)
        if version < 0:
            return frozenset()
        at = _HEAD.size
        for _ in range(topics):
            (length,) = _LENGTH.unpack_from(assignment, at)
            at += _LENGTH.size
            name = assignment[at : at + length].decode()
            at += length
            (count,) = _COUNT.unpack_from(assignment, at)
            at += _COUNT.size
            if length < 0 or not 0 <= count <= (len(assignment) - at) // _PARTITION_SIZE:
                return frozenset()
            numbers = struct.unpack_from(f">{count}i", assignment, at)
            at += _PARTITION_SIZE * count
            found.update(TopicPartition(name, number) for number in numbers)
    except (struct.error, UnicodeDecodeError):
        return frozenset()
    return frozenset(found)
