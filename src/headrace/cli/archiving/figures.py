"""What is known of a running archive, from what it tells: for /metrics and for the terminal."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.cli.archiving.messages import Batch, Stand
from headrace.metrics.archive import Freshness

_RATE_S: Final = 10.0
"""The rate is that of so many seconds."""


@dataclass
class TopicFigures:
    """Of one topic; counters go on where a process was replaced by another."""

    records: int = 0
    size: int = 0
    files: int = 0
    batches: int = 0
    group_failures: int = 0
    version: int = 0
    lag: int | None = None
    """Records in the log that the table does not have; None: not known."""
    freshness: Freshness = field(default_factory=Freshness, repr=False)

    @property
    def fresh(self) -> float | None:
        """Up to when the table has everything, in seconds since 1970."""
        return self.freshness.seconds


class Figures:
    """Takes what the archive tells, from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start at zero; `clock` tells seconds since 1970."""
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, TopicFigures] = {}
        self._rates: deque[tuple[float, int]] = deque()

    def took(self, batch: Batch) -> None:
        """A batch is done."""
        with self._lock:
            for name, told in batch.topics.items():
                topic = self._topics.setdefault(name, TopicFigures())
                topic.records += told.rows
                topic.size += told.size
                topic.files += told.files
                topic.batches += 1
                topic.group_failures += batch.group_failed
                topic.version = told.version
                topic.lag = told.lag
            self._rates.append((self._clock(), sum(topic.rows for topic in batch.topics.values())))

    def stands(self, stand: Stand) -> None:
        """The archive has looked."""
        with self._lock:
            now = self._clock()
            for name, (archived, end) in stand.topics.items():
                topic = self._topics.setdefault(name, TopicFigures())
                topic.lag = end - archived
                topic.freshness.see(now, archived, end)

    def unknown(self) -> None:
        """The archive's process is gone: what was counted stays, where the logs end is not known."""
        with self._lock:
            for topic in self._topics.values():
                topic.lag = None

    def topics(self) -> dict[str, TopicFigures]:
        """The topics; treat as read only."""
        with self._lock:
            return dict(self._topics)

    def rate(self) -> float:
        """Records per second of late."""
        with self._lock:
            now = self._clock()
            while self._rates and self._rates[0][0] < now - _RATE_S:
                self._rates.popleft()
            return sum(rows for _, rows in self._rates) / _RATE_S
