"""Hash of a compacted log's cleaned segments, and their entries.

A segment is a stream of its own with the entries of `headrace.storage.layout.entries`, except for their ids:
`0-<next offset>`. `s` counts the bytes of the segment.
"""

from collections.abc import Sequence

from headrace.topics.segments import CleanedLog, CleanedSegment

FIELDS = ("rows", "end", "next")
COPY = "c"
"""Field of the state with a copy of them."""


def decode(answer: Sequence[bytes | None]) -> CleanedLog:
    """Parse the values of `FIELDS`, of which the last may be left out.

    A row is `<number>:<first offset>:<end>:<bytes>:<newest time>:<batches>`.

    Raises:
        ValueError: Headrace did not write them.
    """
    rows, end, *following = answer
    return CleanedLog(
        tuple(CleanedSegment(*map(int, row.split(b":"))) for row in (rows or b"").split()),
        int(end or 0),
        int(following[0] or 0) if following else 0,
    )


def decode_copy(copied: bytes) -> CleanedLog:
    """Parse the copy of the list in the state: end, next number and rows.

    Raises:
        ValueError: Headrace did not write it.
    """
    end, number, rows = copied.split(b" ", 2)
    return decode((rows, end, number))


def entry_id(next_offset: int) -> str:
    """Return the id of the entry that ends before an offset."""
    return f"0-{next_offset}"


def bounds(offset: int, end: int) -> tuple[str, str]:
    """Return start and end of an XRANGE.

    Its entries hold the records from `offset` on, or the next ones after a gap, and end at or before the offset `end`.
    """
    return entry_id(offset + 1), entry_id(end)
