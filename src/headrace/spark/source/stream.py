"""Run a streaming read on the driver: plan batches and commit the group's offsets."""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.client import offsets
from headrace.client.errors import GroupCommitFailed
from headrace.client.offsets import Extent, Offsets, TopicPartition
from headrace.spark import worker
from headrace.spark.source import offset_bounds
from headrace.spark.source.groups import GroupCommitter
from headrace.spark.source.offset_bounds import EARLIEST, LATEST, Everywhere, Positions
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.tasks import RangePartition, extents, open_log, plan_tasks, read_records
from headrace.spark.source.topic_log import Log, Topics, check_id, ids, was_replaced

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

StoredOffset = dict[str, dict[str, int | str]]
"""The form of `offsets.to_json`."""

_POLL_S: Final = {True: 0.02, False: 0.1}
"""Minimum seconds between requests to Redis (True) and brokers. Spark polls an idle query every 10 ms."""
_COMMIT_RETRY_S: Final = 10.0
"""Seconds before a failed group commit is retried."""


def of_present_topics(options: SourceOptions, topics: Topics) -> SourceOptions:
    """Return the options with the bounds that fit the current topics.

    With failOnDataLoss, raise TopicReplaced for offsets of an earlier topic.
    """
    present = ids(topics)

    def checked(edge: str, positions: Positions | None, instead: int) -> Positions | None:
        known = offset_bounds.ids(positions)
        replaced = offsets.replaced(known, present)
        for name in replaced:
            if options.fail_on_data_loss:
                raise was_replaced(name, present[name], known[name])
            _log.warning("%sOffsets are of a topic %r that was deleted: the new one is read whole", edge, name)
        return offset_bounds.without(positions, replaced, instead)

    starting, ending = checked("starting", options.starting, EARLIEST), checked("ending", options.ending, LATEST)
    return replace(options, starting=starting, ending=ending)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read: one object per query, in its own process on the driver.

    Spark passes a batch's end to `latestOffset` only once that batch is complete, so the group's offsets are committed
    there. `commit` is called a batch late, and never for the last one.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: Log | None = None
        self._committer: GroupCommitter | None = None
        self._warned: set[str] = set()
        """IDs of topics that were recreated."""
        self._topics: Topics = {}
        self._extents: dict[TopicPartition, Extent] = {}
        self._looked_at = float("-inf")
        self._batch_at = float("-inf")
        self._target: Offsets | None = None
        self._target_ids: dict[str, str] = {}
        self._committed: Offsets | None = None
        self._committed_ids: dict[str, str] = {}
        self._commit_after = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_committer": None}

    def initialOffset(self) -> StoredOffset:  # noqa: N802  # Spark's name
        """Return the start of a new query."""
        found = self._look(now=None)
        starting = of_present_topics(self._options, self._topics).starting or Everywhere(LATEST)
        return offsets.to_json(
            offset_bounds.resolve(
                "starting", starting, found, look_up=self._offsets_at, strategy=self._options.strategy
            ),
            ids(self._topics),
        )

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit of `maxOffsetsPerTrigger`. `maxBytesPerTrigger` is applied here: both may be set."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember the current log end, at which this run ends."""
        self._target = {partition: extent.end for partition, extent in self._look(now=None).items()}
        self._target_ids = ids(self._topics)

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> StoredOffset:
        """Return the next batch's end, or `start` without new records. Raise DataLoss, TopicReplaced."""
        now = time.monotonic()
        found = self._look(now=now)
        present = ids(self._topics)
        if start is None:  # Spark 4.1 and older pass neither
            return offsets.to_json({partition: extent.end for partition, extent in found.items()}, present)
        known = offsets.ids_from_json(start)
        self._commit_group(start, now)
        replaced = self._replaced(known, present)
        # With failOnDataLoss=false, a recreated topic is read from its start.
        position = {one: offset for one, offset in offsets.from_json(start).items() if one.topic not in replaced}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        limited = not (limit is None or isinstance(limit, ReadAllAvailable)) or self._options.min_offsets is not None
        end = self._next_end(position, found, most)
        # Keeps known IDs if the checkpoint has none or brokers are too old for IDs.
        stored = offsets.to_json(end, {**known, **present})
        if stored == start or (limited and self._waits(position, end, now)):
            return start
        self._batch_at = now
        return stored

    def _replaced(self, known: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
        """Return topics whose IDs have changed, and log each once. Raise TopicReplaced."""
        replaced = offsets.replaced(known, present)
        for name in replaced:
            if self._options.fail_on_data_loss:
                raise was_replaced(name, present[name], known[name])
            if present[name] not in self._warned:
                self._warned.add(present[name])
                _log.warning(
                    "topic %r was deleted and created again (its id is %s, was %s): the new one is read from its start",
                    name,
                    present[name],
                    known[name],
                )
        return replaced

    def _next_end(self, position: Offsets, found: Mapping[TopicPartition, Extent], most: int | None) -> Offsets:
        options = self._options
        offsets.check_partitions(position, found, fail_on_data_loss=options.fail_on_data_loss)
        target = self._target
        if target is not None:
            replaced = offsets.replaced(self._target_ids, ids(self._topics))
            target = {one: offset for one, offset in target.items() if one.topic not in replaced}
            # The next run reads partitions added after this run began, or it would never end.
            found = {one: extent for one, extent in found.items() if one in target or one in position}
        begin = offsets.within_log(
            offsets.with_new_partitions(position, found), found, fail_on_data_loss=options.fail_on_data_loss
        )
        end = {one: extent.end for one, extent in found.items()}
        if target is not None:
            end = {one: min(offset, target.get(one, begin[one])) for one, offset in end.items()}
        log = self._log()
        if options.max_bytes is not None:
            waiting = {one: offset for one, offset in begin.items() if end[one] > offset}
            end = offsets.limit_bytes(begin, end, options.max_bytes, log.sizes(self._topics, waiting))
        return offsets.limit(begin, end, None) if most is None else log.limited(self._topics, begin, end, most)

    def _waits(self, position: Offsets, end: Offsets, now: float) -> bool:
        fewest = self._options.min_offsets
        if fewest is None or self._target is not None:
            return False
        rows = sum(offset - position.get(one, self._extents[one].start) for one, offset in end.items())
        return rows < fewest and (now - self._batch_at) * 1000 < self._options.max_delay_ms

    def reportLatestOffset(self) -> StoredOffset | None:  # noqa: N802  # Spark's name
        """Return the log's end for the query's progress."""
        found = self._look(now=time.monotonic())
        return offsets.to_json({one: extent.end for one, extent in found.items()}, ids(self._topics))

    def stop(self) -> None:
        """End quietly with the query or Spark."""
        worker.leave()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one batch, which may have been planned before a restart. Raise as `latestOffset`."""
        options = self._options
        found = self._look(now=None)
        planned, present = offsets.ids_from_json(end), ids(self._topics)
        gone = self._replaced(planned, present)
        new = self._replaced(offsets.ids_from_json(start), {**present, **planned})
        last = {one: offset for one, offset in offsets.from_json(end).items() if one.topic not in gone}
        known = {one: found[one] for one in last if one in found}
        offsets.check_partitions(last, found, fail_on_data_loss=options.fail_on_data_loss)
        position = {one: offset for one, offset in offsets.from_json(start).items() if one.topic not in new}
        first = offsets.within_log(
            offsets.with_new_partitions(position, known), known, fail_on_data_loss=options.fail_on_data_loss
        )
        return plan_tasks(options, self._log(), self._topics, first, {one: last[one] for one in known})

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of one task."""
        assert isinstance(partition, RangePartition)
        return read_records(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the group's offsets. Spark requests none below `end` again."""
        self._commit_group(end, time.monotonic())

    def _log(self) -> Log:
        if self._opened is None:
            self._opened = open_log(self._options)
        return self._opened

    def _offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._log().offsets_at(self._topics, times)

    def _look(self, *, now: float | None) -> dict[TopicPartition, Extent]:
        if now is not None and now - self._looked_at < _POLL_S[self._options.redis is not None]:
            return self._extents
        log = self._log()
        topics = log.topics(self._options.subscription)
        for topic in topics.values() if self._options.topic_id is not None else ():
            check_id(topic, self._options.topic_id or "")
        self._topics = topics
        self._extents = extents(self._options, log, topics)
        self._looked_at = time.monotonic()
        return self._extents

    def _commit_group(self, reached: Mapping[str, Any], now: float) -> None:
        options = self._options
        if options.group is None or options.kafka is None:
            return
        known = offsets.ids_from_json(reached)
        replaced = offsets.replaced(known, ids(self._topics))
        position = {one: offset for one, offset in offsets.from_json(reached).items() if one.topic not in replaced}
        done = self._committed
        if done is not None:
            other = offsets.replaced(self._committed_ids, known)
            done = {one: offset for one, offset in done.items() if one.topic not in other}
        if done is not None and all(done.get(one, -1) >= offset for one, offset in position.items()):
            return
        if now < self._commit_after:
            return
        if self._committer is None:
            self._committer = GroupCommitter(options.kafka, options.group)
        try:
            self._committer.commit(position)
        except GroupCommitFailed as error:
            if done is None:
                raise  # a mistake, not an outage
            _log.warning("%s; the next attempt is in %.0f s", error, _COMMIT_RETRY_S)
            self._commit_after = now + _COMMIT_RETRY_S
        else:
            self._committed, self._committed_ids = position, known
            if self._committer.intruder is not None:
                _log.warning("%s", self._committer.intruder)
