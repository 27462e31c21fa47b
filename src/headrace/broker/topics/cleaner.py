"""The log cleaner: cleans the logs of compacted topics that this server leads, the dirtiest one first."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from headrace.aio.tasks import in_thread, log_unhandled
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.compaction import Compaction, Ended, Report
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.runtime.clock import Clock, pause
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.table import TopicTable
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.topics.config import MAX_LONG, CompactionConfig
from headrace.topics.errors import OffsetOutOfRange, TopicError

R = TypeVar("R")
_log = structlog.get_logger("headrace.broker.topics")


class Found(NamedTuple):
    """A log that may be cleaned."""

    live: LiveTopic
    partition: LeaderPartition
    config: CompactionConfig
    dirty_bytes: int
    ratio: float


class _Past(msgspec.Struct):
    """The last pass over a log."""

    log_end: int
    config: CompactionConfig
    due_ms: int | None = None
    """Time from which something may be removed without new records."""


class CleanerCounters(msgspec.Struct):
    """What the cleaner has done since the start of the server."""

    passes: int = 0
    """Passes that have changed a log."""
    failures: int = 0
    """Passes that failed. The next one continues."""
    bytes_read: int = 0
    """Bytes of batches that were cleaned."""
    bytes_kept: int = 0
    """Bytes that were left of them."""
    max_dirty_ratio: float = 0.0
    """Now: the largest share of dirty bytes among the compacted logs."""
    dirty_bytes: int = 0
    """Now: bytes in compacted logs that were appended since they were cleaned."""


class Cleaner:
    """Chooses logs, and cleans one at a time in one thread."""

    def __init__(self, topics: TopicTable, storage: LogStorage, clock: Clock, settings: BrokerSettings) -> None:
        """Prepare. `close` ends the thread."""
        self.counted = CleanerCounters()
        self._topics = topics
        self._storage = storage
        self._clock = clock
        self._map_bytes = settings.log_cleaner_dedupe_buffer_size
        self._bytes_per_s = settings.log_cleaner_io_max_bytes_per_second
        self._threads = ThreadPoolExecutor(1, "headrace-cleaner")
        self._past: dict[str, _Past] = {}

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], R]) -> R:
        """Run `work` in the thread of the cleaner."""
        return await in_thread(self._threads, work)

    async def spent(self, size: int) -> None:
        """Wait for as long as so many bytes may take."""
        wait_ms = int(size * 1_000 / self._bytes_per_s)
        if wait_ms:
            await pause(self._clock, wait_ms)
        else:
            await asyncio.sleep(0)

    async def clean_all(self) -> int:
        """Clean each log that is dirty enough, the dirtiest one first. Return the number of passes."""
        counted = self.counted
        found = [each async for each in self._candidates()]
        counted.dirty_bytes = sum(each.dirty_bytes for each in found)
        counted.max_dirty_ratio = max((each.ratio for each in found), default=0.0)
        due = [each for each in found if await self._is_due(each)]
        due.sort(key=lambda each: each.ratio, reverse=True)
        return sum([await self._clean(each) for each in due])

    async def _candidates(self) -> AsyncIterator[Found]:
        present: set[str] = set()
        for live in list(self._topics):
            config = live.config.compaction
            if config is None:
                continue
            for each in list(live.partitions):
                partition = each.log
                if partition is None or not (partition.is_leader and partition.is_writable):
                    continue
                present.add(partition.stream)
                try:
                    size = await partition.size()
                except TopicError:
                    continue
                dirty = max(0, size - self._storage.segments.cleaned(partition.stream).size)
                yield Found(live, partition, config, dirty, dirty / size if size else 0.0)
        for gone in self._past.keys() - present:
            del self._past[gone]

    async def _is_due(self, found: Found) -> bool:
        partition, config, now_ms = found.partition, found.config, self._clock.now_ms()
        past = self._past.get(partition.stream)
        if past is not None:
            if past.due_ms is not None and now_ms >= past.due_ms:
                return True
            if past.log_end == partition.log_end and past.config == config and not config.min_compaction_lag_ms:
                return False
        try:
            if found.ratio >= config.min_cleanable_dirty_ratio and found.dirty_bytes:
                return True
            if config.max_compaction_lag_ms < MAX_LONG:
                end = self._storage.segments.cleaned(partition.stream).end
                first = await partition.next_batch(max(end, partition.local_start))
                time = -1 if first is None else read_header(memoryview(first.batch)[:HEADER_SIZE]).max_timestamp
                if 0 <= time < now_ms - config.max_compaction_lag_ms:
                    return True
            # Cleaning is how such a Redis frees memory.
            return bool(found.dirty_bytes) and await self._storage.segments.is_memory_short(partition.stream)
        except (TopicError, struct.error):
            return False

    async def _clean(self, found: Found) -> int:
        """Return whether the pass has changed the log."""
        live, partition, counted = found.live, found.partition, self.counted

        def is_wanted() -> bool:
            # A change of its configuration replaces it.
            return live.config.compaction == found.config and not partition.deleted

        log_end = partition.log_end
        before = self._storage.segments.cleaned(partition.stream)
        work = Compaction(
            partition, self._storage, found.config, self._clock.now_ms(), self._map_bytes, self, is_wanted
        )
        place: dict[str, str | int] = {"topic": partition.topic, "partition": partition.index}
        try:
            await work.run()
        except (Ended, OffsetOutOfRange) as error:
            _log.debug("cleaning ended early", **place, reason=str(error))
        except (TopicError, MemoryError) as error:
            counted.failures += 1
            _log.warning("log not cleaned", **place, reason=str(error))
        except Exception:
            # Each later round would begin with this log, and clean no other.
            counted.failures += 1
            _log.exception("log not cleaned", **place)
        else:
            if not work.report.is_partial:
                self._past[partition.stream] = _Past(log_end, found.config, work.report.due_ms)
        report = work.report
        counted.bytes_read += report.bytes_read
        counted.bytes_kept += report.bytes_kept
        changed = self._storage.segments.cleaned(partition.stream) != before
        if changed:
            counted.passes += 1
            _report(place, report)
        return int(changed)


def _report(place: dict[str, str | int], report: Report) -> None:
    removed = report.records_read - report.records_kept
    _log.info("log cleaned", **place, end=report.end, removed=removed, kept=report.records_kept)
    if report.unreadable:
        _log.error("batches that cannot be read stay in a compacted log", **place, batches=report.unreadable)


async def keep_cleaning(cleaner: Cleaner, clock: Clock, settings: BrokerSettings) -> None:
    """Clean logs until canceled."""
    try:
        while settings.log_cleaner_enable:
            await pause(clock, settings.log_cleaner_backoff_ms)
            try:
                await cleaner.clean_all()
            except Exception:
                # One log must not end the cleaning of all others.
                log_unhandled("the log cleaner")
    finally:
        cleaner.close()
