"""Plan tasks and read their ranges on the executors."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from headrace.client.cluster import kept
from headrace.client.errors import OptionError
from headrace.client.offsets import Extent, Offsets, Range, TopicPartition, split
from headrace.records.errors import BatchError
from headrace.spark.source.kafka_log import KafkaLog
from headrace.spark.source.options import ASK, SourceOptions
from headrace.spark.source.topic_log import Log, TopicLog, Topics, Unreadable
from headrace.spark.worker import settle
from headrace.storage.redis.url import with_password, without_password

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """A range of one partition's offsets, with all that a task needs."""

    def __init__(self, options: SourceOptions, stream: str, offsets: Range, topic_id: str = "") -> None:
        self.options = options
        self.stream = stream
        self.offsets = offsets
        self.topic_id = topic_id

    def __repr__(self) -> str:
        """Leave out the options, which may hold a password."""
        return str(self.offsets)


def with_storage(options: SourceOptions) -> SourceOptions:
    """Return the options, with the server's storage URL if needed.

    Raise OptionError if the server does not return it, or ServerUnavailable, LoginRefused.
    """
    if options.redis != ASK:
        _log.info("records are read %s", way(options))
        return options
    assert options.kafka is not None
    found = kept(options.kafka).broker_setting("headrace.storage.url")
    if found is None:
        raise OptionError(
            f"the server at {options.kafka} does not report its storage. It reports it to clients on its own machine "
            "only, and with ACLs only if the storage requires a password. Set option 'redis' to a URL, or remove it to "
            "read through the Kafka protocol"
        )
    if options.redis_password is not None:
        found = with_password(found, options.redis_password)
    options = replace(options, redis=found, redis_password=None)
    _log.info("records are read %s", way(options))
    return options


def way(options: SourceOptions) -> str:
    """Return a readable name of the route to records."""
    if options.redis is not None:
        return f"straight from Redis at {without_password(options.redis)}, where the server's access rules do not hold"
    assert options.kafka is not None
    user = f" as {options.kafka.username}" if options.kafka.username else ""
    return f"through the Kafka protocol from {options.kafka}{user}"


def open_log(options: SourceOptions) -> Log:
    """Return the log of these options, with a lazy connection. Raise StorageUnavailable for an invalid URL."""
    if options.redis is not None:
        # Spark forks a process for each call to a source, which imports again: half of that would be redis-py.
        from headrace.spark.source.redis_log import LogReader  # noqa: PLC0415

        return LogReader(options.redis, committed=options.read_committed)
    assert options.kafka is not None
    return KafkaLog(options.kafka)


def extents(options: SourceOptions, log: Log, topics: Topics) -> dict[TopicPartition, Extent]:
    """Return the bounds of the partitions to read."""
    return options.subscription.chosen(log.extents(topics))


def plan_tasks(options: SourceOptions, log: Log, topics: Topics, start: Offsets, end: Offsets) -> list[InputPartition]:
    """Return the tasks from `start` to `end`."""
    # Offsets of native topics do not count records.
    native = any(topic.bits is not None for topic in topics.values())
    ranges = split(
        log.behind_gaps(topics, start, end),
        end,
        at_least=options.min_partitions,
        max_records=None if native else options.max_records_per_partition,
    )
    ranges = log.cut(topics, ranges)
    # The first range includes the gap before it.
    seen: set[TopicPartition] = set()
    for place, item in enumerate(ranges):
        if item.partition not in seen:
            ranges[place] = Range(item.partition, start[item.partition], item.end)
            seen.add(item.partition)
    return [_task(options, topics[item.partition.topic], item) for item in ranges]


def _task(options: SourceOptions, topic: TopicLog, offsets: Range) -> RangePartition:
    return RangePartition(options, topic.stream(offsets.partition.partition), offsets, topic.id)


def read_records(partition: RangePartition) -> Iterator["pa.RecordBatch"]:
    """Yield a task's records, on the executors."""
    settle()
    options = partition.options
    with open_log(options) as log:
        yield from log.records(
            partition.stream,
            partition.offsets,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
            unreadable=None if options.unreadable == "fail" else quarantine(_into(options.quarantine)),
            topic_id=partition.topic_id,
        )


Keep = Callable[[str, bytes], str]
"""Saves bytes under a name and returns the location."""


def quarantine(keep: Keep | None, tell: Callable[[str], None] = _log.warning) -> Unreadable:
    """Return a callback that reports unreadable batches and saves their bytes if it can."""

    def aside(partition: TopicPartition, base_offset: int, batch: bytes, error: BatchError) -> None:
        kept = ""
        if keep is not None:
            # A repeated task writes the same bytes under the same name.
            place = keep(f"{partition.topic}-{partition.partition}-{base_offset:020d}.batch", batch)
            kept = f"; its {len(batch):,} bytes are in {place}"
        tell(f"left out the batch at offset {base_offset} of {partition}, which cannot be read: {error}{kept}")

    return aside


def _into(folder: str | None) -> Keep | None:
    if folder is None:
        return None

    def keep(name: str, batch: bytes) -> str:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(batch)
        return str(path)

    return keep
