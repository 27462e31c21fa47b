"""The cleaned part of a compacted log: segments with the batches that the cleaner kept. Pure.

Segments are in offset order and precede the stream, in which batches are as their producers sent them. Offsets have
gaps in segments, and between them.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec


class CleanedSegment(msgspec.Struct, frozen=True, gc=False):
    """One segment. Its batches never change."""

    number: int
    """Part of its key. Never used again in its log."""
    first: int
    """Offset from which it was cleaned."""
    end: int
    """Offset before which it was cleaned. Later entries are not part of it."""
    size: int
    """Bytes of its batches."""
    newest: int
    """Largest timestamp of its batches and of earlier segments, in ms; -1 if there is none."""
    batches: int
    """Number of batches."""


class CleanedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch that the cleaner keeps."""

    next_offset: int
    """Next offset of the original batch."""
    batch: bytes | memoryview
    newest: int
    """Largest timestamp up to this batch, in ms."""


class CleanedLog(msgspec.Struct, frozen=True):
    """The cleaned segments of a log."""

    segments: tuple[CleanedSegment, ...] = ()
    end: int = 0
    """Offset where the log begins in the stream, unless the log start offset is higher. 0: never cleaned."""
    next_number: int = 0
    """Number of the next segment."""

    @property
    def size(self) -> int:
        """Return the bytes of all segments."""
        return sum(each.size for each in self.segments)

    @property
    def newest(self) -> int:
        """Return the largest timestamp of all segments, in ms; -1 if there is none."""
        return self.segments[-1].newest if self.segments else -1

    def from_offset(self, offset: int) -> Sequence[CleanedSegment]:
        """Return the segments that may have records from `offset` on."""
        return self.segments[bisect_right(self.segments, offset, key=lambda each: each.end) :]

    def retained_from(self, before_ms: int | None, max_bytes: int | None, stream_bytes: int) -> int | None:
        """Return the first offset that retention keeps, a segment's; None if it removes all segments.

        Args:
            before_ms: time in ms up to which records are removed; None for no limit.
            max_bytes: bytes that are kept; None for no limit. As in Kafka, a segment goes only if the rest has as many.
            stream_bytes: bytes of the stream.
        """
        left = self.size + stream_bytes
        for each in self.segments:
            left -= each.size
            late = before_ms is not None and each.newest < before_ms
            if not late and (max_bytes is None or left < max_bytes):
                return each.first
        return None


NEVER_CLEANED = CleanedLog()
