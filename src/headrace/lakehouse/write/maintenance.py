"""Maintain an archive's table: join small files, expire old records, and delete unlisted files.

Tasks are safe next to a running archive, which sets other fences, and next to readers, because vacuum keeps their
files. A separate fence prevents concurrent tasks: delta-rs would let two replace the same file.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.errors import TableError
from headrace.lakehouse.write import data_files
from headrace.lakehouse.write.columns import fitted
from headrace.lakehouse.write.location import Place, failed
from headrace.lakehouse.write.table import ArchiveFile, ArchiveTable, Conflict, Snapshot, WrittenFile, add_action
from headrace.topics.archive import begin_id

FENCE: Final = "headrace:maintenance"
"""The `txn` that every change of this module sets."""
_COMMIT_BYTES: Final = 1 << 30
"""Maximum bytes rewritten per commit: a kill loses at most this."""
_BATCH_ROWS: Final = 20_000


@dataclass(frozen=True)
class Compacted:
    """Result of a compaction."""

    before: int = 0
    """Number of joined files."""
    after: int = 0
    """Number of resulting files."""
    size: int = 0
    """Bytes of the resulting files."""


@dataclass(frozen=True)
class _Listed:
    path: str
    size: int
    rows: int
    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    max_timestamp: datetime


def compact(
    table: ArchiveTable,
    *,
    target_bytes: int = data_files.FILE_BYTES,
    after_commit: Callable[[Snapshot], None] = lambda _: None,
) -> Compacted:
    """Join neighboring small files of each partition, in offset order. `after_commit` gets the table.

    Joined files have about `target_bytes`. Files above three quarters of it stay as they are. Raise Conflict,
    TableError, StoreUnavailable.
    """
    done = Compacted()
    while True:
        snapshot = table.snapshot()
        runs = list(_runs(_listed(snapshot), target_bytes))
        chosen: list[list[_Listed]] = []
        for run in runs:
            if sum(file.size for part in chosen for file in part) < _COMMIT_BYTES:
                chosen.append(run)
        if not chosen:
            return done
        made: list[tuple[str, WrittenFile]] = []
        try:
            for run in chosen:
                joined = _join(table.place, snapshot.arrow(), run)
                made.append((run[0].topic_id, joined))
            old = [file for run in chosen for file in run]
            actions: list[AddAction | RemoveAction] = [_removed(file, data_change=False) for file in old]
            actions += [add_action(topic_id, file, data_change=False) for topic_id, file in made]
            snapshot.apply(actions, [_fence(snapshot)])
        except Conflict:
            table.discard(file for _, file in made)
            raise
        except OSError as error:
            table.discard(file for _, file in made)
            raise failed(table.place, "was not compacted", error) from error
        after_commit(table.snapshot())
        done = Compacted(done.before + len(old), done.after + len(made), done.size + sum(file.size for _, file in made))


def expire(
    table: ArchiveTable, *, before: datetime, after_commit: Callable[[Snapshot], None] = lambda _: None
) -> tuple[int, int]:
    """Remove leading files of each partition whose records are all older. Return (files, records).

    A file with a younger record stops it, so that a partition has no gaps. Vacuum deletes the files. Raise as
    `compact`.
    """
    snapshot = table.snapshot()
    old: list[_Listed] = []
    for files in _by_partition(_listed(snapshot)).values():
        for file in files:
            if file.max_timestamp >= before:
                break
            old.append(file)
    if old:
        # In offset order: the last one of a partition counts.
        starts = {begin_id(file.topic_id, file.partition): file.end for file in old}
        fences = [Transaction(name, offset) for name, offset in starts.items()]
        snapshot.apply([_removed(file, data_change=True) for file in old], [_fence(snapshot), *fences])
        after_commit(table.snapshot())
    return len(old), sum(file.rows for file in old)


def vacuum(table: ArchiveTable, *, older_than_h: int, spare: Iterable[str] = (), dry_run: bool = False) -> list[str]:
    """Delete files that were unlisted for `older_than_h` hours or never committed. Return their paths.

    `older_than_h` is for readers of an older version. `spare` are files that other tables list. Raise TableError,
    StoreUnavailable.
    """
    place = table.place
    kept = set(spare)
    try:
        # Uses the time of removal from the table, or the age of files that were never in it.
        found = place.delta().vacuum(older_than_h, dry_run=True, enforce_retention_duration=False, full=True)
        deleted = sorted(path for path in found if path not in kept)
        if not dry_run:
            for path in deleted:
                place.delete(path)
    except (DeltaError, OSError) as error:
        raise failed(place, "was not vacuumed", error) from error
    return deleted


def _runs(files: Iterable[_Listed], target_bytes: int) -> Iterator[list[_Listed]]:
    for mine in _by_partition(files).values():
        run: list[_Listed] = []
        for file in mine:
            large = file.size > target_bytes * 3 // 4
            # A repeated batch adds dead letters between those of its first attempt.
            overlaps = bool(run) and file.start < run[-1].end
            if run and (large or overlaps or sum(one.size for one in run) + file.size > target_bytes):
                if len(run) > 1:
                    yield run
                run = []
            if not large:
                run.append(file)
        if len(run) > 1:
            yield run


def _by_partition(files: Iterable[_Listed]) -> dict[tuple[str, int], list[_Listed]]:
    found: dict[tuple[str, int], list[_Listed]] = {}
    for file in sorted(files, key=lambda file: file.start):
        found.setdefault((file.topic_id, file.partition), []).append(file)
    return found


def _join(place: Place, columns: pa.Schema, run: list[_Listed]) -> WrittenFile:
    """Memory holds a few thousand records."""
    files = place.files()
    first = run[0]
    joined, following = None, first.start
    try:
        for listed in run:
            with files.open_input_file(listed.path) as source, pq.ParquetFile(source, pre_buffer=True) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    whole = _widened(batch, columns)
                    if pc.min(whole.column("offset")).as_py() < following:
                        raise TableError(f"{place.name}/{listed.path} is not in offset order: it is not the archive's")
                    if joined is None:
                        joined = ArchiveFile(place, first.topic, first.topic_id, first.partition, whole)
                    joined.write(whole)
                    following = joined.next
        rows = 0 if joined is None else joined.rows
        if joined is None or rows != sum(file.rows for file in run):
            raise TableError(f"{place.name} lists {sum(file.rows for file in run)} records in files that have {rows}")
        return joined.close()
    except BaseException:
        if joined is not None:
            joined.abandon()
        raise


def _widened(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    names = batch.schema.names
    arrays = [
        fitted(batch.column(one.name) if one.name in names else None, batch.num_rows, one.type) for one in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _listed(snapshot: Snapshot) -> list[_Listed]:
    return [
        _Listed(
            path=row["path"],
            size=row["size_bytes"],
            rows=row["num_records"],
            topic=row["min.topic"],
            topic_id=row["min.topicId"],
            partition=row["min.partition"],
            start=row["min.offset"],
            end=row["max.offset"] + 1,
            max_timestamp=row["max.timestamp"],
        )
        for row in snapshot.files()
        if _ours(row)
    ]


def _ours(row: dict[str, Any]) -> bool:
    names = ("min.topic", "min.topicId", "min.partition", "min.offset", "max.offset", "min.timestamp", "max.timestamp")
    return all(row.get(name) is not None for name in (*names, "num_records"))


def _removed(file: _Listed, *, data_change: bool) -> RemoveAction:
    return RemoveAction(file.path, data_change, int(time.time() * 1000), file.size, {})


def _fence(snapshot: Snapshot) -> Transaction:
    return Transaction(FENCE, snapshot.version + 1)
