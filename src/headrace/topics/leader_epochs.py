"""Leader epochs of a log and the fencing epochs of its entries. Pure.

Each recovery of a log raises its fencing epoch, which becomes the leader epoch of new records (KIP-101, KIP-320).
Acknowledged entries that are stored again keep their leader epoch under the new fencing epoch, so a row has both.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class EpochRow(NamedTuple):
    """From `first` on, records have this leader epoch and lie under this term."""

    epoch: int
    first: int
    term: int


class LeaderEpochs:
    """The rows of a log in offset order; the first one counts for everything before it too."""

    __slots__ = ("_firsts", "rows")

    def __init__(self, rows: Sequence[EpochRow]) -> None:
        """Raises ValueError when there is no row: a log that was opened has one."""
        if not rows:
            raise ValueError("a log has at least one leader epoch")
        self.rows = tuple(rows)
        self._firsts = [row.first for row in rows]

    def term_of(self, offset: int) -> int:
        """The term under which the entry with the record at `offset` lies, or would lie."""
        return self.rows[max(0, bisect_right(self._firsts, offset) - 1)].term

    def kept(self, end: int, epoch: int) -> int:
        """How much of a log is as it was: up to `end` or before, where Redis has lost what was behind.

        Args:
            end: where the log ended.
            epoch: the leader epoch that it had then.
        """
        if epoch > self.rows[-1].epoch:
            # That is lost, too, and with it from which offset on it counted.
            return 0
        return min(end, next((row.first for row in self.rows if row.epoch > epoch), end))

    def kept_for(self, offset: int, epoch: int) -> int:
        """Return how much of a log is unchanged for a consumer at `offset` and a leader epoch; below 0: unknown.

        If that epoch is lost and the log was not recovered since, no records have replaced it.
        """
        return self.kept(offset, epoch) if 0 <= epoch <= self.rows[-1].epoch else offset

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Answer OffsetForLeaderEpoch: the largest leader epoch up to this one, and its end.

        Args:
            epoch: the leader epoch of a client's last record.
            log_end: where the current epoch ends.

        Returns: Leader epoch and end offset; -1 and -1 for one below 0 or above the current one. As in Kafka, an epoch
        before the first row ends where that row begins or before, so that a consumer that has read it all continues
        there.
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
