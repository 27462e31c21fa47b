"""Count the progress of a running archive, for /metrics, terminal and console."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace.metrics.runs import MOST_COMMITS, Commit, Freshness


class Standing(NamedTuple):
    """A table's progress, in offsets of all partitions together."""

    archived: int
    end: int


@dataclass(frozen=True)
class TopicProgress:
    """Progress of one topic's table after a batch."""

    lag: int
    """Records in the log that the table lacks."""
    version: int
    """Version of the table."""
    fences: dict[int, int] = field(default_factory=dict)
    """The next offset to archive, by partition."""
    topic_id: str = ""
    batch_rows: int = 0
    batch_bytes: int = 0
    """Bytes of Parquet that the batch wrote."""
    batch_files: int = 0
    unreadable: tuple[str, ...] = ()
    """One line for each stored batch that this batch skipped as unreadable."""
    batch_dead: int = 0
    """Records of the batch that went to the dead-letter table."""
    dead_table: str = ""
    """Name of the dead-letter table."""
    dead_reason: str = ""
    """Why the first of them failed."""


@dataclass(frozen=True)
class Progress:
    """Progress of the archive after a batch."""

    rows: int = 0
    """Archived records of all topics since the start."""
    dead: int = 0
    """Records since the start whose values could not be decoded."""
    batch_s: float = 0.0
    """Duration of the batch."""
    topics: dict[str, TopicProgress] = field(default_factory=dict)
    group_failed: bool = False
    """Whether committing the group's offsets failed; the next batch retries."""

    @property
    def batch_rows(self) -> int:
        """Records that the batch archived."""
        return sum(topic.batch_rows for topic in self.topics.values())

    @property
    def batch_dead(self) -> int:
        """Records that the batch set aside."""
        return sum(topic.batch_dead for topic in self.topics.values())

    @property
    def batch_bytes(self) -> int:
        """Bytes of Parquet in the batch."""
        return sum(topic.batch_bytes for topic in self.topics.values())

    @property
    def batch_files(self) -> int:
        """Files that the batch added."""
        return sum(topic.batch_files for topic in self.topics.values())

    @property
    def lag(self) -> int:
        """Records in the logs that the tables lack."""
        return sum(topic.lag for topic in self.topics.values())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """One line for each stored batch, of any topic, that was skipped."""
        return tuple(line for topic in self.topics.values() for line in topic.unreadable)


_RATE_S: Final = 10.0
"""Seconds over which the rate is averaged."""


@dataclass
class TopicFigures:
    """Figures of one topic. Counters continue when a process is replaced."""

    records: int = 0
    size: int = 0
    """Bytes of Parquet."""
    files: int = 0
    batches: int = 0
    group_failures: int = 0
    unreadable: int = 0
    """Stored batches that were skipped as unreadable."""
    dead: int = 0
    """Records whose values could not be decoded, which are in the dead-letter table."""
    dead_table: str = ""
    dead_reason: str = ""
    """Why the first of them failed."""
    version: int = 0
    topic_id: str = ""
    fences: Mapping[int, int] = field(default_factory=dict)
    """The next offset to archive, by partition."""
    lag: int | None = None
    """Records in the log that the table lacks, or None if unknown."""
    freshness: Freshness = field(default_factory=Freshness, repr=False)
    commits: deque[Commit] = field(default_factory=lambda: deque(maxlen=MOST_COMMITS), repr=False)

    @property
    def fresh(self) -> float | None:
        """Return the time up to which the table is complete, in seconds since 1970."""
        return self.freshness.seconds


class Figures:
    """Collects an archive's progress, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start at zero; `clock` returns seconds since 1970."""
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, TopicFigures] = {}
        self._rates: deque[tuple[float, int]] = deque()

    def took(self, progress: Progress) -> None:
        """Count an archived batch."""
        with self._lock:
            now = self._clock()
            for name, told in progress.topics.items():
                topic = self._topics.setdefault(name, TopicFigures())
                topic.records += told.batch_rows
                topic.size += told.batch_bytes
                topic.files += told.batch_files
                topic.batches += 1
                topic.group_failures += progress.group_failed
                topic.unreadable += len(told.unreadable)
                topic.dead += told.batch_dead
                topic.dead_table = topic.dead_table or told.dead_table
                topic.dead_reason = topic.dead_reason or told.dead_reason
                topic.version = told.version
                topic.topic_id, topic.fences = told.topic_id, told.fences
                topic.lag = told.lag
                if told.batch_rows:
                    topic.commits.append(Commit(round(now * 1000), told.batch_rows, progress.batch_s, told.version))
            self._rates.append((now, progress.batch_rows))

    def stands(self, standing: Mapping[str, Standing]) -> None:
        """Record the ends of the tables and the logs."""
        with self._lock:
            now = self._clock()
            for name, (archived, end) in standing.items():
                topic = self._topics.setdefault(name, TopicFigures())
                topic.lag = end - archived
                topic.freshness.see(now, archived, end)

    def unknown(self) -> None:
        """Keep the counters but forget the log ends: the archive's process ended."""
        with self._lock:
            for topic in self._topics.values():
                topic.lag = None

    def topics(self) -> dict[str, TopicFigures]:
        """Return the topics, read-only."""
        with self._lock:
            return dict(self._topics)

    def rate(self) -> float:
        """Return the recent records per second."""
        with self._lock:
            now = self._clock()
            while self._rates and self._rates[0][0] < now - _RATE_S:
                self._rates.popleft()
            return sum(rows for _, rows in self._rates) / _RATE_S
