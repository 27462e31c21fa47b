"""One micro-batch of the archive, exactly once: files, then the table's commit, then the group's.

Rule of this file: the order of the steps is the guarantee. Killed before the table's commit, the files are nobody's;
killed after it, the fences make the repeated batch empty.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.spark.archive.table import ArchiveTable, Conflict, WrittenFile
from headrace.spark.errors import GroupCommitFailed, SparkError
from headrace.spark.plan import Extent, Range, TopicPartition


class ArchiveGap(SparkError):
    """The batch starts after records that are neither in the table nor lost: a checkpoint that is not the table's."""


@dataclass(frozen=True)
class RangeResult:
    """What a task made of its range: the part at or above the fence, and the files it wrote of it."""

    offsets: Range
    """As clipped: empty when the table had everything."""
    files: tuple[WrittenFile, ...]
    unreadable: tuple[str, ...] = ()
    """A line for each stored batch that could not be read and was left out."""
    traces: tuple[str, ...] = ()
    """Some of the traces that its records belong to, where they are asked for."""


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did."""

    rows: int
    size: int
    """Bytes of Parquet."""
    fences: dict[int, int]
    """The next offset to archive, per partition, after the batch."""
    version: int
    """The table's version the fences were read from."""
    group_error: GroupCommitFailed | None = None
    """The table has the batch, the group does not show it; the next batch's commit carries it along."""
    files: int = 0
    """Parquet files added."""
    unreadable: tuple[str, ...] = ()
    """A line for each stored batch that could not be read and was left out."""
    traces: tuple[str, ...] = ()
    """Some of the traces that its records belong to, where they are asked for."""


Writer = Callable[[Mapping[int, int]], Sequence[RangeResult]]
"""Given the fences, writes what is at or above them; called again after a conflict."""
Step = Callable[[str], None]
"""Told each step as it is reached: `started`, `files written`, `table committed`, `group committed`."""


class PositionCommitter(Protocol):
    """Whoever commits the group's positions."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises GroupCommitFailed."""


def clip(offsets: Range, fences: Mapping[int, int]) -> Range:
    """The part of a range that the table does not have."""
    start = min(max(offsets.start, fences.get(offsets.partition.partition, 0)), offsets.end)
    return replace(offsets, start=start)


class BatchArchiver:
    """Archives micro-batches of one topic into one table."""

    def __init__(
        self,
        table: ArchiveTable,
        topic: str,
        topic_id: str,
        *,
        extents: Callable[[], Mapping[int, Extent]],
        group: PositionCommitter | None = None,
        skip_lost: bool = False,
        step: Step = lambda _: None,
    ) -> None:
        """`extents` tells where the log starts and ends now; `skip_lost` accepts what retention has taken."""
        self._table = table
        self._topic = topic
        self._topic_id = topic_id
        self._extents = extents
        self._group = group
        self._skip_lost = skip_lost
        self._step = step

    def archive(self, write: Writer) -> BatchResult:
        """Bring one micro-batch into the table.

        Raises:
            ArchiveGap: committing would leave out records that the log still has.
        """
        rows = size = count = 0
        unreadable: tuple[str, ...] = ()
        traces: tuple[str, ...] = ()
        self._step("started")
        while True:
            extents = self._extents()
            snapshot = self._table.snapshot()
            fences = snapshot.fences(self._topic_id, extents)
            results = [result for result in write(fences) if result.offsets.end > result.offsets.start]
            files = [file for result in results for file in result.files]
            self._step("files written")
            if not results:
                break
            try:
                after = self._fences_after(results, fences, extents)
                snapshot.commit(self._topic_id, files, after)
            except Conflict:
                self._table.discard(files)
                continue
            except ArchiveGap:
                self._table.discard(files)
                raise
            rows, size, count = sum(file.rows for file in files), sum(file.size for file in files), len(files)
            unreadable = tuple(line for result in results for line in result.unreadable)
            traces = tuple({trace: None for result in results for trace in result.traces})
            self._step("table committed")
            break
        return replace(self._finish(rows, size, count), unreadable=unreadable, traces=traces)

    def commit_group(self) -> BatchResult:
        """Bring the group to where the table is: what a crash between the two commits left undone."""
        return self._finish(0, 0, 0)

    def _finish(self, rows: int, size: int, files: int) -> BatchResult:
        snapshot = self._table.snapshot()
        fences = snapshot.fences(self._topic_id, self._extents())
        error = None
        if self._group is not None and fences:
            try:
                self._group.commit({TopicPartition(self._topic, number): fence for number, fence in fences.items()})
            except GroupCommitFailed as failed:
                error = failed
            self._step("group committed")
        return BatchResult(rows, size, fences, snapshot.version, error, files)

    def _fences_after(
        self, results: Sequence[RangeResult], fences: Mapping[int, int], extents: Mapping[int, Extent]
    ) -> dict[int, int]:
        after: dict[int, int] = {}
        for result in sorted(results, key=lambda item: (item.offsets.partition, item.offsets.start)):
            offsets = result.offsets
            partition = offsets.partition.partition
            expected = after.get(partition, self._expected(partition, fences, extents))
            if offsets.start > expected:
                raise ArchiveGap(
                    f"offsets {expected} to {offsets.start - 1} of {self._topic}-{partition} are in the log but not in "
                    "the table: the checkpoint is ahead of the table; start without it, the table knows its place"
                )
            after[partition] = offsets.end
        return after

    def _expected(self, partition: int, fences: Mapping[int, int], extents: Mapping[int, Extent]) -> int:
        fence = fences.get(partition)
        if fence is None:
            return extents[partition].start
        return max(fence, extents[partition].start) if self._skip_lost else fence
