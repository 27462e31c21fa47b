"""A faster codec for Produce requests with one batch for one partition, and their responses.

Tests compare the results with those of the message tables.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

from headrace.protocol.wire import Buffer, varint
from headrace.records.fallback.header import HeaderFields

Plain = tuple[int, int, str | bytes, int, bytearray | memoryview, HeaderFields, int, int, str | None]
"""Version, correlation id, topic, partition, record batch, its header, acks, timeout (ms) and transactional id.

The topic is its name, or its id from version 13 on.
"""

read: Callable[[Buffer, int, int, bool], Plain | None]
"""Decode a request with one batch for one partition, acks 1 or all, and ASCII only.

Takes a buffer, the start and end of the request, and whether the buffer may be kept. If so, the batch is a view of
it, else a copy. The batch has passed `records.batch.check`.

Returns None for any other request, and without the C extension. Use the message tables then.
"""

accepted: Callable[[int, int, str | bytes, int, int, int, int], bytes]
"""Return the complete frame of a successful response, for versions 3 to 13.

Takes version, correlation id, topic (its id from version 13 on), partition, base offset, log append time (ms) and log
start offset.
"""

_FLEXIBLE_FROM: Final = 9
_SIZE_FIELD: Final = 4


def plain_accepted(
    version: int,
    correlation_id: int,
    topic: str | bytes,
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
def _shape(version: int, topic: str | bytes) -> tuple[Callable[..., bytes], int, bytes, bytes]:
    name = topic.encode() if isinstance(topic, str) else topic
    if version >= _FLEXIBLE_FROM:
        # No tags in the header, one topic, one partition.
        size = b"" if isinstance(topic, bytes) else varint(len(name) + 1)
        name = b"\0\2" + size + name + b"\2"
        ending = b"\1\0\0" + b"\0" + b"\0\0\0\0" + b"\0"
    else:
        name = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\1"
        ending = (b"\0\0\0\0" + b"\xff\xff" if version >= 8 else b"") + b"\0\0\0\0"
    # No record errors, no message, no tags, then the throttle time.
    packed = Struct(f">ii{len(name)}sihqq{'q' if version >= 5 else ''}{len(ending)}s")
    return packed.pack, packed.size - _SIZE_FIELD, name, ending


try:
    import headrace.protocol._produce as _produce  # noqa: PLR0402  # mypy finds the stub only by this form
except ImportError:  # no compiler at the installation

    def read(buffer: Buffer, start: int, stop: int, owned: bool) -> Plain | None:
        """Return None."""
        return None

    accepted = plain_accepted
else:
    read = _produce.read
    accepted = _produce.accepted
