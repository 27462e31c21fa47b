"""One micro-batch of the archive, exactly once: files, then each table's commit, then the group's.

Rule of this file: the order of the steps is the guarantee. Killed before a table's commit, the files are nobody's;
killed after it, the fences make the repeated batch empty.
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
    dead: tuple[WrittenFile, ...] = ()
    """Files of the table beside, with records whose values could not be decoded."""
    columns: pa.Schema | None = None
    """Columns of values that were found, of a typed table."""
    reason: str = ""
    """Why the first record of `dead` is there."""


@dataclass(frozen=True)
class BatchResult:
    """What one micro-batch did."""

    topics: dict[str, TopicProgress]
    traces: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By topic some of the traces that its records belong to."""
    group_error: GroupCommitFailed | None = None
    """The tables have the batch, the group does not show it; the next batch's commit carries it along."""
    conflicts: int = 0
    """How often somebody else had written the same records first."""

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
    """Of a typed table: the one beside it, for records whose values cannot be decoded."""


@dataclass(frozen=True)
class Fences:
    """What the tables have, and so what is written: the first offsets that they lack."""

    offsets: Mapping[TopicPartition, int]
    dead: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The same of the tables beside."""
    aside: Mapping[TopicPartition, pa.Array] = field(default_factory=dict)
    """Offsets at or above the table's fence whose records are in the table of dead letters. They are not written again.

    An attempt that died between its two commits set them aside. The schema may have changed since, so whether a record
    can be decoded does not tell which of the two tables has it (decision 0088).
    """
    columns: Mapping[str, pa.Schema] = field(default_factory=dict)
    """By topic the columns of values that a typed table has."""
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By topic the columns that its table cannot get, with the reason."""


Writer = Callable[[Fences], Sequence[RangeResult]]
"""Given the fences, writes what is at or above them; called again after a conflict."""
Step = Callable[[str], None]
"""Told each step as it is reached: `started`, `files written`, `table committed` (per table), `group committed`."""


class OffsetCommitter(Protocol):
    """Whoever commits the group's positions."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises GroupCommitFailed."""


def standing_of(extents: Mapping[int, Extent], fences: Mapping[int, int]) -> Standing:
    """How far a topic's table is, by these offsets below which it has everything."""
    # Retention may have taken what the table has: there is nothing to archive below a log start.
    archived = sum(max(one.start, min(one.end, fences.get(number, 0))) for number, one in extents.items())
    return Standing(archived, sum(one.end for one in extents.values()))


def clip(offsets: Range, fences: Mapping[TopicPartition, int]) -> Range:
    """The part of a range that the table does not have."""
    start = min(max(offsets.start, fences.get(offsets.partition, 0)), offsets.end)
    return replace(offsets, start=start)


@dataclass
class _Done:
    """What this batch has brought into one table so far."""

    files: list[WrittenFile] = field(default_factory=list)
    dead: list[WrittenFile] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    traces: dict[str, None] = field(default_factory=dict)
    reason: str = ""


class BatchArchiver:
    """Archives micro-batches of topics, each into a table of its own."""

    def __init__(
        self,
        targets: Callable[[], Mapping[str, Target]],
        *,
        extents: Callable[[], Mapping[TopicPartition, Extent]],
        group: OffsetCommitter | None = None,
        skip_lost: bool = False,
        step: Step = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            targets: the topics by name, asked for before `extents`.
            extents: where the logs of these topics start and end now.
            group: told where the tables stand.
            skip_lost: accept what retention has taken.
            step: see `Step`.
        """
        self._targets = targets
        self._extents = extents
        self._group = group
        self._skip_lost = skip_lost
        self._step = step

    def archive(self, write: Writer) -> BatchResult:
        """Bring one micro-batch into the tables.

        Raises:
            ArchiveGap: committing would leave out records that the log still has.
            StoreUnavailable, TableError: a table could not be read or written.
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
                    snapshots[name].commit(target.topic_id, files, after)
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
            # What was committed is below its fences now: the next round leaves it out.
            if not refused:
                break
        return replace(self._finish(done), conflicts=conflicts)

    def commit_group(self) -> BatchResult:
        """Bring the group to where the tables are: what a crash between the two commits left undone."""
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
        """Give the tables the columns that were found; True when the batch is to be written again, for the new tables.

        Columns are added by a commit of their own, before the fences are read for the one with the files. One that the
        table cannot get joins `refused`: the records that have it are set aside when the batch is written again.
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
                    raise  # it is not the columns
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
        """The fences of one topic's table when these ranges are in it."""
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


def _within(known: pa.Schema, found: Sequence[pa.Schema], refused: dict[str, str]) -> pa.Schema:
    """The columns that a table may get; those beyond its bound join `refused`."""
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
    """The columns that Delta does not take, with the reason, found out with a table that is thrown away."""
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

    Args:
        target: the topic.
        files: with the dead letters.
        after: the fences of the topic's table when the batch is in it.
        known: the fences that the table of dead letters had when the files were written.

    Raises:
        Conflict: another archive has committed to the table of dead letters since.
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
