"""The Delta table: its columns, its fences, and the one commit by which files and fences change together.

Rule of this file: what a commit writes was computed from the snapshot it is committed against. Delta refuses the
commit when another one has set one of the same `txn` ids since that snapshot was loaded.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from headrace.records.arrow import schema
from headrace.spark.errors import SparkError, TableError

COLUMNS: Final = schema(include_headers=True).append(pa.field("topicId", pa.string()))
"""The columns of the Spark source, and the topic's id: a topic created again starts its offsets anew."""


class Conflict(SparkError):
    """Another archiver committed first; nothing of this commit is in the table."""


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file with records `start` up to, not including, `end` of one partition, in offset order."""

    path: str
    """Relative to the table."""
    topic: str
    partition: int
    start: int
    end: int
    rows: int
    size: int
    """Bytes."""
    min_timestamp_ms: int
    max_timestamp_ms: int


class ArchiveTable:
    """A Delta table in a local directory."""

    def __init__(self, path: str) -> None:
        """Take the table at `path`, or create it there.

        Raises:
            TableError: something else lies there, or the table has other columns.
        """
        self.path = _local(path)
        _create_if_missing(self.path)
        found = self.snapshot().columns()
        if found != _names_and_types(Schema.from_arrow(COLUMNS)):
            raise TableError(f"{self.path} is a Delta table with other columns than an archive's: name another path")

    def snapshot(self) -> "Snapshot":
        """The table as it is now."""
        try:
            return Snapshot(DeltaTable(self.path))
        except DeltaError as error:
            raise TableError(f"{self.path} cannot be read as a Delta table: {_one_line(error)}") from error

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Delete files that were never committed."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)


class Snapshot:
    """One version of the table."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    @property
    def version(self) -> int:
        """The Delta version."""
        return int(self._table.version())

    def columns(self) -> list[tuple[str, str]]:
        """Names and Delta types."""
        return _names_and_types(self._table.schema())

    def fences(self, topic_id: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset to archive, for each partition that has one."""
        versions = {partition: self._table.transaction_version(app_id(topic_id, partition)) for partition in partitions}
        return {partition: version for partition, version in versions.items() if version is not None}

    def commit(self, topic_id: str, files: Iterable[WrittenFile], fences: Mapping[int, int]) -> None:
        """Add the files and set the fences, both or neither.

        Raises:
            Conflict: one of these fences was set by somebody else since this snapshot.
        """
        held = self.fences(topic_id, fences)
        for partition, offset in fences.items():
            if offset < held.get(partition, 0):
                raise ValueError(f"fence of partition {partition} would fall from {held[partition]} to {offset}")
        transactions = [Transaction(app_id(topic_id, partition), offset) for partition, offset in fences.items()]
        try:
            self._table.create_write_transaction(
                [_add_action(topic_id, file) for file in files],
                mode="append",
                schema=self._table.schema(),
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise Conflict(_one_line(error)) from error
        self._sync_log()

    def _sync_log(self) -> None:
        """Bring the commit to the disk: what comes after it may let the log drop these records."""
        log = Path(self._table.table_uri.removeprefix("file://")) / "_delta_log"
        after = f"{self.version:020d}.json"
        for entry in [*(path for path in log.glob("*.json") if path.name > after), log]:
            descriptor = os.open(entry, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def app_id(topic_id: str, partition: int) -> str:
    """The id of a partition's `txn`."""
    return f"headrace:{topic_id}:{partition}"


def _local(path: str) -> Path:
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        raise TableError(f"tables lie in a local or mounted directory; {scheme}:// is not supported: {path}")
    return Path(rest if separator else path).absolute()


def _create_if_missing(path: Path) -> None:
    if path.is_dir() and DeltaTable.is_deltatable(str(path)):
        return
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise TableError(f"{path} is there and is not a Delta table: name an empty or new directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(str(path), COLUMNS, mode="ignore", description="Records archived by Headrace")
    except OSError as error:
        raise TableError(f"cannot create a table at {path}: {error.strerror}") from error
    except DeltaError as error:
        if not DeltaTable.is_deltatable(str(path)):  # another archiver may have been quicker
            raise TableError(f"cannot create a table at {path}: {_one_line(error)}") from error


def _names_and_types(schema: Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema.fields]


def _add_action(topic_id: str, file: WrittenFile) -> AddAction:
    low = {
        "topic": file.topic,
        "partition": file.partition,
        "offset": file.start,
        "timestamp": _instant(file.min_timestamp_ms),
        "topicId": topic_id,
    }
    high = low | {"offset": file.end - 1, "timestamp": _instant(file.max_timestamp_ms)}
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(stats),
    )


def _instant(timestamp_ms: int) -> str:
    """Delta's statistics have milliseconds; so have records."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
