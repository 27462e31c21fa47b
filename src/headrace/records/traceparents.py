"""Header `traceparent` of W3C Trace Context, found without decoding records."""

import re

from headrace.records.batch import peek
from headrace.records.build import build
from headrace.records.errors import BatchError
from headrace.records.fallback.header import Buffer
from headrace.records.walk import payload, records

NAME = "traceparent"
MOST = 16
"""Maximum number of traces per batch."""

_DECOMPRESSED = 1 << 20
"""Maximum decompressed bytes."""
# Name and value after their lengths as zigzag varints, 11 and 55 bytes. A match within a value counts, too.
_HEADER = re.compile(rb"\x16traceparent\x6e(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")
_TEXT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: str) -> bool:
    """Return whether a text is valid in version 00."""
    return _TEXT.fullmatch(text) is not None


def traceparents(batch: Buffer) -> list[str]:
    """Return at most `MOST` distinct ones in a batch, or none if it cannot be decompressed."""
    try:
        decompressed = payload(peek(batch), batch, _DECOMPRESSED)
    except BatchError:
        return []
    found: dict[str, None] = {}
    for match in _HEADER.finditer(decompressed):
        text = match[1].decode()
        if is_traceparent(text):
            found[text] = None
            if len(found) == MOST:
                break
    return list(found)


def with_header(batch: Buffer, name: str, value: str) -> bytearray:
    """Return the batch with one more header in each record. Raises BatchError."""
    more = (name, value.encode())
    found = records(batch, 0)
    return build([(each.key, each.value, each.timestamp, (*each.headers, more)) for each in found])
