"""The commonest Produce request and its answer, without the structures of the message tables.

Nearly every producer sends one batch for one partition in a request of its own: for batches of a few kilobytes reading
and answering that through structures costs more than all else that is done with it. What is read and written here is,
to the byte, what the tables say; tests hold the two together.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

from headrace.protocol.wire import Buffer, varint
from headrace.records.fallback.header import HeaderFields

Plain = tuple[int, int, str, int, bytearray | memoryview, HeaderFields, int]
"""Version, correlation id, topic, partition, the record batch in memory of its own, its header, and how many ms
acks=all waits for replicas, 0 for acks=1."""

read: Callable[[Buffer, int, int, bool], Plain | None]
"""A whole request from its header on: one batch for one partition, acks 1 or all, no transactional id, ASCII only.

Takes a buffer, where in it the request begins and ends, and whether the buffer may be kept: the batch is then a view
into it, else a copy. The batch has passed `records.batch.check`.

None for every other request, legal or not, and always where there is no C extension: the tables say what it is then.
"""

accepted: Callable[[int, int, str, int, int, int, int], bytes]
"""The answer that a batch was stored: a whole frame with its size, for versions 3 to 9.

Given version, correlation id, topic, partition, base offset, log append time (ms) and log start offset.
"""

_FLEXIBLE_FROM: Final = 9
_SIZE_FIELD: Final = 4


def plain_accepted(
    version: int,
    correlation_id: int,
    topic: str,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    /,
) -> bytes:
    """`accepted` without the C extension."""
    pack, size, name, ending = _shape(version, topic)
    if version < 5:
        return pack(size, correlation_id, name, partition, 0, base_offset, log_append_time_ms, ending)
    return pack(size, correlation_id, name, partition, 0, base_offset, log_append_time_ms, log_start_offset, ending)


@lru_cache(maxsize=4096)
def _shape(version: int, topic: str) -> tuple[Callable[..., bytes], int, bytes, bytes]:
    """How to pack it, its size, and what lies between header and partition, and behind the partition's offsets."""
    name = topic.encode()
    if version >= _FLEXIBLE_FROM:
        # No tags in the header; one topic, one partition.
        name = b"\0\2" + varint(len(name) + 1) + name + b"\2"
        ending = b"\1\0\0" + b"\0" + b"\0\0\0\0" + b"\0"
    else:
        name = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\1"
        ending = (b"\0\0\0\0" + b"\xff\xff" if version >= 8 else b"") + b"\0\0\0\0"
    # No record errors and no message, no tags; then the throttle time.
    packed = Struct(f">ii{len(name)}sihqq{'q' if version >= 5 else ''}{len(ending)}s")
    return packed.pack, packed.size - _SIZE_FIELD, name, ending


try:
    import headrace.protocol._produce as _produce  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler when Headrace was installed

    def read(buffer: Buffer, start: int, stop: int, owned: bool) -> Plain | None:
        """None: every request is read by the message tables."""
        return None

    accepted = plain_accepted
else:
    read = _produce.read
    accepted = _produce.accepted
