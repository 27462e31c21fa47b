"""Archive one micro-batch exactly once: files, then each table's commit, then the group's.

After a kill before a table's commit, the files are unreferenced. After a later kill, the fences make the repeated batch
empty.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from headrace.client.errors import GroupCommitFailed, SparkError, TableError
from headrace.client.offsets import Extent, Offsets, Range, TopicPartition
from headrace.lakehouse.status.counters import Standing, TopicProgress
from headrace.lakehouse.write.columns import MOST_COLUMNS, folded, leaves
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import ArchiveTable, Conflict, Snapshot, WrittenFile, merged


class ArchiveGap(SparkError):
    """The table lacks earlier records that the log has: the checkpoint is another table's."""


@dataclass(frozen=True)
class RangeResult:
    """The part of a task's range at or above the fence, and its files."""

    offsets: Range
    """The clipped range, empty if the table has all of it."""
    files: tuple[WrittenFile, ...]
    unreadable: tuple[str, ...] = ()
    """One line for each stored batch that was skipped as unreadable."""
    traces: tuple[str, ...] = ()
    """Some of the traces that its records belong to, if requested."""
    dead: tuple[WrittenFile, ...] = ()
    """Files of the dead-letter table."""
    columns: pa.Schema | None = None
    """Value columns that were found, of a typed table."""
    reason: str = ""
    """Why the first record of `dead` failed."""


@dataclass(frozen=True)
class BatchResult:
    """The result of one micro-batch."""

    topics: dict[str, TopicProgress]
    traces: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Some of the traces of the records, by topic."""
    group_error: GroupCommitFailed | None = None
    """The tables have the batch but the group's commit failed; the next batch's commit includes it."""
    conflicts: int = 0
    """Number of times that another archive committed the same records first."""

    @property
    def rows(self) -> int:
        """Records of all topics."""
        return sum(topic.batch_rows for topic in self.topics.values())


@dataclass(frozen=True)
class Target:
    """One topic and its table."""

    topic: str
    topic_id: str
    table: ArchiveTable
    dead: ArchiveTable | None = None
    """The dead-letter table of a typed table."""


@dataclass(frozen=True)
class Fences:
    """The first offset of each partition that a table lacks."""

    offsets: Mapping[TopicPartition, int]
    dead: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same for the dead-letter tables."""
    aside: Mapping[TopicPartition, pa.Array] = field(default_factory=dict)
    """Offsets at or above the table's fence whose records are in the dead-letter table. They are not written again.

    An attempt that died between its two commits set them aside. The schema may have changed since, so decoding does not
    show which table has a record (decision 0088).
    """
    columns: Mapping[str, pa.Schema] = field(default_factory=dict)
    """Value columns of typed tables, by topic."""
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns that a table cannot get, with the reason, by topic."""


Writer = Callable[[Fences], Sequence[RangeResult]]
"""Writes records at or above the fences; called again after a conflict."""
Step = Callable[[str], None]
"""Called at each step: `started`, `files written`, `table committed` (per table), `group committed`."""


class OffsetCommitter(Protocol):
    """Commits the group's offsets."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit the offsets. Raise GroupCommitFailed."""


def standing_of(extents: Mapping[int, Extent], fences: Mapping[int, int]) -> Standing:
    """Return a topic table's progress for these fences."""
    # Retention may have deleted archived records: nothing remains below the log start offset.
    archived = sum(max(one.start, min(one.end, fences.get(number, 0))) for number, one in extents.items())
    return Standing(archived, sum(one.end for one in extents.values()))


def clip(offsets: Range, fences: Mapping[TopicPartition, int]) -> Range:
    """Return the part of a range that the table lacks."""
    start = min(max(offsets.start, fences.get(offsets.partition, 0)), offsets.end)
    return replace(offsets, start=start)


@dataclass
class _Done:
    files: list[WrittenFile] = field(default_factory=list)
    dead: list[WrittenFile] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    traces: dict[str, None] = field(default_factory=dict)
    reason: str = ""


class BatchArchiver:
    """Archives micro-batches, each topic into its own table."""

    def __init__(
        self,
        targets: Callable[[], Mapping[str, Target]],
        *,
        extents: Callable[[], Mapping[TopicPartition, Extent]],
        group: OffsetCommitter | None = None,
        skip_lost: bool = False,
        step: Step = lambda _: None,
    ) -> None:
        """Prepare. `targets` must be loaded before `extents`, the current log start and end offsets.

        `skip_lost` accepts records that retention has deleted.
        """
        self._targets = targets
        self._extents = extents
        self._group = group
        self._skip_lost = skip_lost
        self._step = step

    def archive(self, write: Writer) -> BatchResult:
        """Archive one micro-batch.

        Raises:
            ArchiveGap: Committing would leave out records that the log still has.
            StoreUnavailable, TableError: A table could not be read or written.
        """
        done: dict[str, _Done] = {}
        conflicts = 0
        refused_columns: dict[str, dict[str, str]] = {}
        self._step("started")
        while True:
            targets, extents, snapshots, fences = self._look()
            fences = replace(fences, refused=refused_columns)
            results = [result for result in write(fences) if result.offsets.end > result.offsets.start]
            if self._widened(targets, fences, results, refused_columns):
                continue
            self._step("files written")
            refused = False
            for name, mine in _by_topic(results).items():
                files = [file for result in mine for file in result.files]
                target = targets[name]
                dead = [file for result in mine for file in result.dead]
                try:
                    after = self._fences_after(mine, fences.offsets, extents)
                    _set_aside(target, dead, after, fences.dead)
                    snapshots[name].commit(target.topic_id, files, after, _starts(mine, extents))
                except Conflict:
                    target.table.discard(files)
                    refused = True
                    conflicts += 1
                    continue
                except ArchiveGap:
                    target.table.discard(files)
                    raise
                had = done.setdefault(name, _Done())
                had.files += files
                had.dead += dead
                had.unreadable += [line for result in mine for line in result.unreadable]
                had.traces |= {trace: None for result in mine for trace in result.traces}
                had.reason = had.reason or next((result.reason for result in mine if result.dead), "")
                self._step("table committed")
            # Committed records are below their fences.
            if not refused:
                break
        return replace(self._finish(done), conflicts=conflicts)

    def commit_group(self) -> BatchResult:
        """Commit the tables' offsets for the group, after a crash between the two commits."""
        return self._finish({})

    def _look(
        self,
    ) -> tuple[Mapping[str, Target], Mapping[TopicPartition, Extent], dict[str, Snapshot], Fences]:
        targets = self._targets()
        extents = self._extents()
        snapshots = {name: target.table.snapshot() for name, target in targets.items()}
        offsets: Offsets = {}
        dead: Offsets = {}
        aside: dict[TopicPartition, pa.Array] = {}
        columns: dict[str, pa.Schema] = {}
        for name, target in targets.items():
            numbers = [one.partition for one in extents if one.topic == name]
            found = snapshots[name].fences(target.topic_id, numbers)
            offsets |= {TopicPartition(name, number): offset for number, offset in found.items()}
            if target.dead is not None:
                dead_letters = target.dead.snapshot()
                for number, end in dead_letters.fences(target.topic_id, numbers).items():
                    partition = TopicPartition(name, number)
                    dead[partition] = end
                    start = offsets.get(partition, 0)
                    if start < end:
                        aside[partition] = dead_letters.offsets(target.topic_id, number, start, end)
                columns[name] = snapshots[name].typed()
        return targets, extents, snapshots, Fences(offsets, dead, aside, columns)

    def _widened(
        self,
        targets: Mapping[str, Target],
        fences: Fences,
        results: Sequence[RangeResult],
        refused: dict[str, dict[str, str]],
    ) -> bool:
        """Add new columns to the tables. Return True if the batch must be written again for them.

        A separate commit adds the columns, before the files' fences are read. The repeated batch sets records with a
        rejected column aside.
        """
        changed = False
        for name, mine in _by_topic(results).items():
            found = [result.columns for result in mine if result.columns is not None]
            known = fences.columns.get(name, pa.schema([]))
            mine_refused = refused.setdefault(name, {})
            before = len(mine_refused)
            new = _within(known, found, mine_refused)
            try:
                changed = targets[name].table.widen(known, [new]) or changed
            except TableError:
                mine_refused |= _refused(known, new)
                if len(mine_refused) == before:
                    raise  # the columns are not the cause
            changed = changed or len(mine_refused) > before
        for result in results if changed else ():
            targets[result.offsets.partition.topic].table.discard(result.files)
            dead = targets[result.offsets.partition.topic].dead
            if dead is not None:
                dead.discard(result.dead)
        return changed

    def _finish(self, done: Mapping[str, _Done]) -> BatchResult:
        targets, extents, snapshots, looked = self._look()
        fences = dict(looked.offsets)
        error = None
        if self._group is not None and fences:
            try:
                self._group.commit(fences)
            except GroupCommitFailed as failed:
                error = failed
            self._step("group committed")
        topics = {}
        for name, target in targets.items():
            had = done.get(name, _Done())
            mine = {one.partition: offset for one, offset in fences.items() if one.topic == name}
            logs = {one.partition: extent for one, extent in extents.items() if one.topic == name}
            archived, end = standing_of(logs, mine)
            topics[name] = TopicProgress(
                lag=end - archived,
                version=snapshots[name].version,
                fences=mine,
                topic_id=target.topic_id,
                batch_rows=sum(file.rows for file in had.files),
                batch_bytes=sum(file.size for file in had.files),
                batch_files=len(had.files),
                unreadable=tuple(had.unreadable),
                batch_dead=sum(file.rows for file in had.dead),
                dead_table=target.dead.place.name if target.dead is not None and had.dead else "",
                dead_reason=had.reason,
            )
        return BatchResult(topics, {name: tuple(had.traces) for name, had in done.items()}, error)

    def _fences_after(
        self,
        results: Sequence[RangeResult],
        fences: Mapping[TopicPartition, int],
        extents: Mapping[TopicPartition, Extent],
    ) -> dict[int, int]:
        after: dict[int, int] = {}
        for result in sorted(results, key=lambda item: (item.offsets.partition, item.offsets.start)):
            offsets = result.offsets
            partition = offsets.partition.partition
            expected = after.get(partition, self._expected(offsets.partition, fences, extents))
            if offsets.start > expected:
                raise ArchiveGap(
                    f"offsets {expected} to {offsets.start - 1} of {offsets.partition} are in the log but not in "
                    "the table: the checkpoint is ahead of the table; start without it, the table knows its place"
                )
            after[partition] = offsets.end
        return after

    def _expected(
        self, partition: TopicPartition, fences: Mapping[TopicPartition, int], extents: Mapping[TopicPartition, Extent]
    ) -> int:
        fence = fences.get(partition)
        if fence is None:
            return extents[partition].start
        return max(fence, extents[partition].start) if self._skip_lost else fence


def _starts(results: Sequence[RangeResult], extents: Mapping[TopicPartition, Extent]) -> dict[int, int]:
    """Return the first offset of each partition that the log still had."""
    starts: dict[int, int] = {}
    for result in results:
        offsets = result.offsets
        start = min(max(offsets.start, extents[offsets.partition].start), offsets.end)
        number = offsets.partition.partition
        starts[number] = min(start, starts.get(number, start))
    return starts


def _within(known: pa.Schema, found: Sequence[pa.Schema], refused: dict[str, str]) -> pa.Schema:
    room = MOST_COLUMNS - leaves(known)
    names = {folded(name) for name in known.names}
    kept = []
    for one in merged(found):
        if folded(one.name) in names or one.name in refused:
            continue
        room -= leaves(pa.schema([one]))
        if room < 0:
            refused[one.name] = f"the table has {MOST_COLUMNS:,} columns of values, and gets no more"
        else:
            kept.append(one)
    return pa.schema(kept)


def _refused(known: pa.Schema, new: pa.Schema) -> dict[str, str]:
    refused = {}
    with tempfile.TemporaryDirectory(prefix="headrace-columns-") as folder:
        trial = ArchiveTable(Place.of(f"{folder}/t"))
        trial.widen(pa.schema([]), [known])
        for column in new:
            try:
                trial.widen(known, [pa.schema([column])])
            except TableError as error:
                refused[column.name] = f"Delta does not take such a column: {error}".replace(folder, "")[:500]
    return refused


def _set_aside(
    target: Target, files: Sequence[WrittenFile], after: Mapping[int, int], known: Mapping[TopicPartition, int]
) -> None:
    """Commit the dead letters of a batch, before its other records.

    `after` are the fences of the topic's table after the batch, `known` those of the dead-letter table when the files
    were written. Raise Conflict if another archive has committed to it since.
    """
    if target.dead is None or not files:
        return
    snapshot = target.dead.snapshot()
    held = snapshot.fences(target.topic_id, after)
    numbers = {file.partition for file in files}
    if any(held.get(number) != known.get(TopicPartition(target.topic, number)) for number in numbers):
        target.dead.discard(files)
        raise Conflict(f"another archive has written to {target.dead.place.name}")
    fences = {number: max(held.get(number, 0), after[number]) for number in numbers}
    try:
        snapshot.commit(target.topic_id, files, fences)
    except Conflict:
        target.dead.discard(files)
        raise


def _by_topic(results: Sequence[RangeResult]) -> dict[str, list[RangeResult]]:
    found: dict[str, list[RangeResult]] = {}
    for result in results:
        found.setdefault(result.offsets.partition.topic, []).append(result)
    return found
