"""What a leader keeps next to its log: snapshots of producers and transactions, retention, mirrored offsets."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator

from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.high_watermark import Replication
from headrace.broker.partition.producer_snapshots import ProducerStateSnapshots, SnapshotSchedule
from headrace.broker.partition.producer_total import ProducerTotal
from headrace.broker.partition.reader import ReadableLog
from headrace.broker.partition.source import COMMITTED
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.clock import Clock
from headrace.records.markers import Marker
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import Fenced, NotLeader, OffsetOutOfRange, StorageUnavailable
from headrace.topics.model import AppendDone, Appended
from headrace.topics.producer_state import ProducerDescription
from headrace.topics.rejected_batches import RejectedBatches


class SavedLog(ReadableLog):
    """A log with its snapshots and its retention."""

    def __init__(
        self,
        topic: str,
        index: int,
        stream: str,
        storage: LogStorage,
        budget: CacheBudget,
        clock: Clock,
        snapshots: SnapshotSchedule,
        reads: ReadBudget | None,
        total: ProducerTotal | None,
    ) -> None:
        super().__init__(stream, storage, budget, reads)
        self.topic = topic
        self.index = index
        self.deleted = False
        self._elsewhere: NotLeader | None = None
        """Why clients can neither read nor write here."""
        self._fenced_reason: Exception | None = StorageUnavailable(f"{topic}-{index} is not open")
        self.replication = Replication(f"{topic}-{index}", stream, storage.copies, budget)
        self._saving = ProducerStateSnapshots(topic, index, stream, storage)
        self._snapshots = snapshots
        self._save_due = False
        self._writing = asyncio.Lock()
        self._clock = clock
        self.refusals = RejectedBatches(clock.ticks_ms, *(() if total is None else (total.try_take,)))
        self._total = total
        if total is not None:
            total.add(self)
        self._owner = OffsetAssigner(0, refused=self.refusals)

    @abstractmethod
    def on_lost(self, error: Exception) -> None:
        """Recover the log before any further append: its ownership is in doubt."""

    @property
    def is_writable(self) -> bool:
        """Whether a batch can be stored, unless the topic is being changed."""
        return self._fenced_reason is None and not self.deleted

    @abstractmethod
    def check_led(self) -> None:
        """See `Partition.check_led`."""

    @property
    def producers(self) -> int:
        """See `ProducerLog.producers`."""
        return len(self._owner.producers) + len(self.refusals.first)

    def expire_silent(self, silent_ms: int) -> None:
        """See `ProducerLog.expire_silent`."""
        self.expire_producers(self._clock.now_ms() - silent_ms)
        self.refusals.expire(silent_ms)

    def wait_for_marker(self, producer_id: int, done: AppendDone, wait_ms: int) -> bool:
        """Call `done` when the producer's last marker is stored and replicated. Return False if it is already."""
        offset = self._owner.transactions.marker_in_flight(producer_id)
        if offset is None:
            return False
        placed = Appended(offset, duplicate=True)
        self.replication.repeat(offset + 1, placed, done, self.replication.min_insync, wait_ms, self.log_end)
        return True

    def note_end(self, marker: Marker) -> None:
        """Record epoch and number of a transaction without batches here. Raises TooManyProducers."""
        self._owner.note_end(marker, self._clock.now_ms())
        self.save_soon()

    def is_unsaved(self, producer_id: int) -> bool:
        """Whether the producer's state has changed since the last snapshot."""
        return self._owner.is_unsaved(producer_id)

    def producer_states(self) -> Iterator[ProducerDescription]:
        """Yield the state of each producer as of now (DescribeProducers)."""
        opened = dict(self._owner.transactions.open)
        for producer_id, known in list(self._owner.producers.items()):
            found = opened.get(producer_id)
            yield ProducerDescription(
                producer_id,
                known.epoch,
                known.batches[0].last if known.batches else -1,
                known.last_use_ms,
                known.ended,
                -1 if found is None else found.first_offset,
            )

    def save_soon(self) -> None:
        """Save changed producers and the high watermark within 1 s."""
        if not self._save_due:
            self._save_due = True
            self._snapshots.add(self)

    def use(self, snapshots: SnapshotSchedule) -> None:
        """Use another snapshot schedule: the current one may end with its virtual cluster."""
        if snapshots is self._snapshots:
            return
        self._snapshots.discard(self)
        self._snapshots = snapshots
        # Include snapshots under way, because they may fail.
        snapshots.add(self)

    async def save_producers(self) -> None:
        """Save changed producers. Raises TopicError; the log is then recovered if necessary."""
        async with self._writing:  # a later save may rely on this one
            self._save_due = False
            if self.is_writable:
                try:
                    shown = self.log_end if self.replication.min_insync > 1 else None
                    await self._saving.save(shown, self.local_start)
                except Fenced as error:
                    self.on_lost(StorageUnavailable(str(error)))
                    raise

    def expire_producers(self, before_ms: int) -> None:
        """See `Partition.expire_producers`."""
        if self._saving.expire_producers(before_ms):
            self._snapshots.add(self)

    async def trim(self, before_ms: int | None, max_bytes: int | None, up_to: int | None = None) -> None:
        """Apply retention. Saves the producers of trimmed batches first.

        Keeps batches that wait for replicas or belong to transactions without a marker.
        """
        if (before_ms is None and max_bytes is None) or self._elsewhere is not None or self.transactions is None:
            return
        await self.save_producers()
        if self.replication.queue is not None:
            up_to = self.log_end if up_to is None else min(up_to, self.log_end)
        if self.transactions.has_unstable:
            stable = self.visible_end(COMMITTED)
            up_to = stable if up_to is None else min(up_to, stable)
        trimmed = await self._storage.trim(self.stream, before_ms=before_ms, max_bytes=max_bytes, up_to=up_to)
        self._trimmed(trimmed)

    async def delete_before(self, offset: int) -> None:
        """Raise the log start offset, also within a batch. Raises OffsetOutOfRange."""
        self.check_led()
        if offset > self.log_end:
            raise OffsetOutOfRange(f"{self.topic}-{self.index}: offset {offset} is beyond {self.log_end}")
        if self.cold is not None:
            await self.cold.raise_start(offset)
        await self._storage.settle(self.stream)
        await self.save_producers()
        self._trimmed(await self._storage.trim(self.stream, before_offset=offset))

    async def settle(self) -> None:
        """See `Partition.settle`. Raises StorageUnavailable."""
        await self.save_producers()
        await self._storage.settle(self.stream)
        await self.replication.settle()
        if self._fenced_reason is not None:
            # The waiting batches failed; recovery makes stored ones readable.
            raise StorageUnavailable(f"{self.topic}-{self.index}: {self._fenced_reason}")

    async def mirror_offset(self, group: str, offset: int) -> None:
        """See `Partition.mirror_offset`."""
        if offset >= 0 and self._elsewhere is None:
            await self._storage.mirror_offset(self.stream, group, offset)
