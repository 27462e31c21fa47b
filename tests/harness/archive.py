"""An archive without Spark: copies what a topic's log has into a Delta table, as `docs/keyspace.md` describes it."""

import json
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.offsets import Range, TopicPartition
from headrace.metrics.runs import ARCHIVE_RUNS, ArchiveReport
from headrace.records.arrow import schema
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.storage.layout import archives
from headrace.storage.layout.keys import Keyspace
from headrace.topics.archive import app_id, begin_id

COLUMNS = schema(include_headers=True).append(pa.field("topicId", pa.string()))


class Archiver:
    """Archives one topic into a table in a directory."""

    def __init__(self, storage: str, topic: str, table: Path, *, committed: bool = False) -> None:
        """`committed`: the records of a headrace archive, without aborted ones."""
        self.table = table
        self.topic = topic
        self._storage = storage
        self._committed = committed
        if not table.exists():
            table.mkdir(parents=True)
            DeltaTable.create(str(table), COLUMNS)

    def archive(self, up_to: int, *, rows_per_file: int = 1_000, group: int = 64) -> dict[int, int]:
        """Bring what the log has into the table, up to an offset of each partition; the next offset by partition."""
        with LogReader(self._storage, committed=self._committed) as log:
            topic = log.topics(Subscription(names=(self.topic,)))[self.topic]
            while True:  # what is acknowledged may come to Redis a moment later
                extents = log.extents({topic.name: topic})
                if all(extent.end >= up_to for extent in extents.values()):
                    break
            table = DeltaTable(str(self.table))
            files: list[AddAction | RemoveAction] = []
            ends: dict[int, int] = {}
            fences: list[Transaction] = []
            for place, extent in extents.items():
                fence = table.transaction_version(app_id(topic.id, place.partition))
                done = extent.start if fence is None else fence
                if fence is None:
                    fences.append(Transaction(begin_id(topic.id, place.partition), done))
                end = ends[place.partition] = max(done, up_to)
                if end > done:
                    stream = topic.stream(place.partition)
                    found = log.records(stream, Range(place, done, end), include_headers=True)
                    files += self._write(topic.id, place, found, rows_per_file, group)
        if files or fences:
            # As the archive does, also if all records were aborted.
            fences += [Transaction(app_id(topic.id, number), end) for number, end in ends.items()]
            table.create_write_transaction(
                files, "append", table.schema(), commit_properties=CommitProperties(app_transactions=fences)
            )
        self.tell(topic.id, ends)
        return ends

    def tell(self, topic_id: str, ends: dict[int, int], table: str | None = None) -> None:
        """Record the location of the table and its progress."""
        url = table or f"file://{self.table}"
        document = archives.ArchiveDocument(topic=self.topic, table=url, archived=ends, updated_ms=0)
        with redis.Redis.from_url(self._storage) as connection:
            connection.hset(Keyspace().documents(archives.KIND), topic_id, archives.encode(document))

    def _write(
        self, topic_id: str, place: TopicPartition, found: Iterable[Any], rows_per_file: int, group: int
    ) -> list[AddAction]:
        rows = pa.Table.from_batches(found, schema(include_headers=True))
        rows = rows.append_column("topicId", pa.repeat(pa.scalar(topic_id), rows.num_rows)).cast(COLUMNS)
        return [
            self._file(topic_id, place, rows.slice(first, rows_per_file), group)
            for first in range(0, rows.num_rows, rows_per_file)
        ]

    def _file(self, topic_id: str, place: TopicPartition, rows: pa.Table, group: int) -> AddAction:
        relative = f"{topic_id}/{place.partition}/{uuid.uuid4().hex}.parquet"
        path = self.table / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, row_group_size=group, compression="zstd")
        offsets, times = rows["offset"].to_pylist(), sorted(rows["timestamp"].to_pylist())
        same = {"topic": place.topic, "partition": place.partition, "topicId": topic_id}
        stats = {
            "numRecords": rows.num_rows,
            "minValues": same | {"offset": offsets[0], "timestamp": _text(times[0])},
            "maxValues": same | {"offset": offsets[-1], "timestamp": _text(times[-1])},
        }
        size = path.stat().st_size
        return AddAction(relative, size, {}, int(time.time() * 1000), data_change=True, stats=json.dumps(stats))


def _text(time: Any) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"


def told_of(storage: str, topic: str) -> ArchiveReport:
    """The last status that the archive of a topic reported to the console."""
    with redis.Redis.from_url(storage) as connection:
        documents = connection.hvals(Keyspace().documents(ARCHIVE_RUNS))
    (found,) = [
        each for each in (msgspec.json.decode(text, type=ArchiveReport) for text in documents) if each.topic == topic
    ]
    return found
