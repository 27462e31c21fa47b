"""Where the bytes of a log are: how far to read for a given number of them.

Sparse, like Kafka's offset index: one place per 64 KiB appended since the server started. What lies before is found by
trying (see `ColdReads`).
"""

from array import array
from bisect import bisect_right

GRAIN = 64 << 10
"""Bytes of log between two places."""
_MOST_PLACES = 1 << 16


class LogIndex:
    """Offsets and the byte positions at which their batches begin, counted from where the index begins."""

    __slots__ = ("_due", "_grain", "_offsets", "_position", "_positions")

    def __init__(self, log_end: int) -> None:
        self.clear(log_end)

    def clear(self, log_end: int) -> None:
        """Forget everything; the index begins at `log_end`."""
        self._offsets = array("q", [log_end])
        self._positions = array("q", [0])
        self._position = 0
        self._grain = GRAIN
        self._due = GRAIN  # the position from which on a place is noted

    def append(self, base_offset: int, size: int) -> None:
        """Note a batch of `size` bytes at the end of the log."""
        position = self._position
        if position >= self._due:
            self._offsets.append(base_offset)
            self._positions.append(position)
            if len(self._offsets) > _MOST_PLACES:
                self._thin_out()
            self._due = self._positions[-1] + self._grain
        self._position = position + size

    def _thin_out(self) -> None:
        """Half as many places, twice as far apart."""
        del self._offsets[1::2], self._positions[1::2]
        self._grain *= 2

    def covers(self, offset: int) -> bool:
        """Whether `offset` lies behind the index's beginning."""
        return offset >= self._offsets[0]

    def end_of(self, offset: int, limit: int) -> int | None:
        """Offset up to which about `limit` bytes lie from `offset` on; None: so much is not left.

        Args:
            offset: must be covered.
            limit: bytes. The answer is at most one place, or one batch, further than this.
        """
        place = bisect_right(self._offsets, offset) - 1
        behind = bisect_right(self._positions, self._positions[place] + limit)
        return self._offsets[behind] if behind < len(self._offsets) else None


class ColdReads:
    """How many batches to ask for where no index tells their size: few at first, more as they prove small."""

    __slots__ = ("count",)

    MOST = 64
    """Bounds what one read may bring when small batches are followed by large ones."""

    def __init__(self) -> None:
        self.count = 1

    def learn(self, asked: int, batches: int, size: int, limit: int, *, full: bool = False) -> None:
        """A read that asked for `asked` batches brought `batches`, of `size` bytes together.

        `full`: there were more; where these are fewer than asked for, they are as many as `limit` bytes hold.
        """
        if size > limit:
            self.count = max(1, limit * batches // size)
        elif batches == asked:
            self.count = min(self.MOST, 2 * asked)
        elif full:
            self.count = batches
