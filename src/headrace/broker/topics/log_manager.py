"""Creates partitions that store record batches in a log, with one leader each."""

import asyncio
from collections.abc import Iterable

from headrace.broker.brokers.leadership import Leadership
from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.admission import Admit
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.broker.topics.live import StreamName
from headrace.topics.config import TopicConfig
from headrace.topics.model import Topic

AT_ONCE = 64
"""Partitions created or closed per turn of the loop. Creating 10,000 takes 0.3 s."""


class LogManager:
    """Logs of one virtual cluster; implements `PartitionManager`."""

    def __init__(
        self,
        storage: LogStorage,
        leading: Leadership,
        clock: Clock,
        stream_of: StreamName,
        budget: CacheBudget,
        snapshots: SnapshotSchedule,
        reads: ReadBudget | None = None,
        producers: ProducerTotal | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Without `reads`, each partition has its own budget for reading ahead.

        `admit` confirms transactional batches (None: the server has no transactions).
        """
        self._admit = admit
        self.stream_of = stream_of
        self._storage = storage
        self._leading = leading
        self._clock = clock
        self._budget = budget
        self._snapshots = snapshots
        self._reads = reads
        self._producers = producers

    async def open(self, topic: Topic, config: TopicConfig, first: int, *, listed: bool = True) -> list[Partition]:
        """Return the partitions from `first` on. Those that this server leads are recovered."""
        logs = []
        for index, stream in enumerate(topic.streams[first:], first):
            log = LeaderPartition(
                topic.name,
                index,
                stream,
                self._storage,
                self._budget,
                self._clock,
                self._snapshots,
                self._reads,
                self._producers,
            )
            log.admission.admit = self._admit
            log.want_copies(config.min_insync_replicas)
            logs.append(log)
            if len(logs) % AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._leading.open(topic if listed else None, logs)
        return [*logs]

    def adopt(self, topic: str, partitions: Iterable[Partition]) -> None:
        """Save changes of their producers with the others here."""
        for partition in partitions:
            if partition.log is not None:
                partition.log.use(self._snapshots)
                partition.log.admission.admit = self._admit
