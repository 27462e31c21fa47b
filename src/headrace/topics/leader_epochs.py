"""Leader epochs of a log and the fencing epochs of its entries. Pure.

Each recovery of a log raises its fencing epoch, which becomes the leader epoch of new records (KIP-101, KIP-320).
Acknowledged entries that are stored again keep their leader epoch under the new fencing epoch, so a row has both.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class EpochRow(NamedTuple):
    """From `first` on, records have this leader epoch, in entries of this fencing epoch."""

    epoch: int
    first: int
    term: int


class LeaderEpochs:
    """Rows of a log in offset order. The first one also applies to everything before it."""

    __slots__ = ("_firsts", "rows")

    def __init__(self, rows: Sequence[EpochRow]) -> None:
        """Raise ValueError without rows: a recovered log has one."""
        if not rows:
            raise ValueError("a log has at least one leader epoch")
        self.rows = tuple(rows)
        self._firsts = [row.first for row in rows]

    def term_of(self, offset: int) -> int:
        """Return the fencing epoch of the entry with the record at `offset`."""
        return self.rows[max(0, bisect_right(self._firsts, offset) - 1)].term

    def kept(self, end: int, epoch: int) -> int:
        """Return the offset up to which a log is unchanged, if Redis has lost data.

        `end` and `epoch` are the earlier log end offset and leader epoch.
        """
        if epoch > self.rows[-1].epoch:
            # That epoch is lost, and with it the offset from which it applied.
            return 0
        return min(end, next((row.first for row in self.rows if row.epoch > epoch), end))

    def kept_for(self, offset: int, epoch: int) -> int:
        """Return how much of a log is unchanged for a consumer at `offset` and a leader epoch. Below 0: unknown.

        If that epoch is lost and the log was not recovered since, no records have replaced it.
        """
        return self.kept(offset, epoch) if 0 <= epoch <= self.rows[-1].epoch else offset

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest leader epoch up to `epoch`, and its end (OffsetForLeaderEpoch).

        Returns: Leader epoch and end offset; -1 and -1 below 0 or above the current one. As in Kafka, an epoch before
        the first row ends at or before that row, so that a consumer that has read it all continues there.
        """
        if epoch < 0 or epoch > self.rows[-1].epoch:
            return -1, -1
        found, end = epoch, log_end
        for row in self.rows:
            if row.epoch > epoch:
                end = row.first
                break
            found = row.epoch
        return found, end
