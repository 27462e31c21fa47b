"""Save the producer state and the high watermark of each log.

A successful write also proves that no other broker led the log since this server opened it.
"""

import asyncio
from typing import Protocol

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.log_ports import LogStorage
from headrace.broker.partition.recovery import opened_last_by
from headrace.broker.runtime.clock import Clock, pause
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import Fenced, StorageNotWritten, TopicError
from headrace.topics.leader_epochs import LeaderEpochs

INTERVAL_MS = 1_000
_PARTITIONS_AT_ONCE = 64
_STOP_S = 3.0
"""Seconds that a stopping server waits for all snapshots."""
_AT_ONCE = 1_000
"""Producers per write: a few milliseconds of the event loop."""
_log = structlog.get_logger("headrace.broker.partition")


class Saved(Protocol):
    """A partition with producer state."""

    async def save_producers(self) -> None:
        """Save the changes. Raises TopicError on failure."""


class SnapshotSchedule:
    """The partitions with unsaved changes."""

    def __init__(self) -> None:
        self._due: dict[Saved, None] = {}

    def add(self, partition: Saved) -> None:
        """Schedule a snapshot of a changed partition."""
        self._due[partition] = None

    def discard(self, partition: Saved) -> None:
        """Drop a partition: deleted, or led by another broker."""
        self._due.pop(partition, None)

    async def save_last(self, within_s: float = _STOP_S) -> None:
        """Save all before the server stops, within a time limit.

        The next leader rebuilds unsaved state from the log's newest batches.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.save()
        except TimeoutError:
            _log.warning("producer snapshot not stored: Redis is too slow; the next recovery reads more batches")

    async def save(self) -> None:
        """Save all. A failed save is retried at the next interval."""
        due, self._due = list(self._due), {}
        async for _ in in_slices(due, self._save_one, _PARTITIONS_AT_ONCE):
            pass

    async def _save_one(self, partition: Saved) -> None:
        try:
            await partition.save_producers()
        except Exception as error:  # save the others anyway
            self._due[partition] = None
            if not isinstance(error, TopicError):
                _log.exception("producer snapshot failed")

    async def keep_saving(self, clock: Clock) -> None:
        """Save at each interval until cancelled."""
        while True:
            await pause(clock, INTERVAL_MS)
            await self.save()


class ProducerStateSnapshots:
    """Saves the changes of one log and tracks whether another broker may have led it."""

    __slots__ = (
        "_epochs", "_index", "_overtaken", "_owner", "_saved_to", "_storage", "_stream", "_topic", "_unproven",
    )  # fmt: skip

    def __init__(self, topic: str, index: int, stream: str, storage: LogStorage) -> None:
        self._topic = topic
        self._index = index
        self._stream = stream
        self._storage = storage
        self._owner = OffsetAssigner(0)
        self._epochs: LeaderEpochs | None = None
        self._saved_to: tuple[int, int | None] = 0, None
        """Offset of the last snapshot, and the high watermark at that time."""
        self._unproven: object | None = None
        """Set while another broker may have led the log and made more of it readable.

        None if no other broker did. Cleared by a later reply from Redis or by a recovery. Each doubt is a new object.
        """
        self._overtaken = False
        """Whether another broker certainly led it. Only a recovery resets this, not a reply from an old primary."""

    def begin(self, owner: OffsetAssigner, epochs: LeaderEpochs) -> None:
        """Start after this server opened the log: no other broker leads it."""
        self._owner, self._epochs = owner, epochs
        self._saved_to = 0, None
        self._unproven, self._overtaken = None, False

    def end(self) -> None:
        """Stop saving: the log is deleted."""
        self._owner = OffsetAssigner(0)

    @property
    def proven(self) -> bool:
        """Whether certainly no other broker led the log since."""
        return self._unproven is None

    def led_elsewhere(self) -> None:
        """Note that another broker may have led it. The next write verifies this."""
        self._unproven = object()

    def overtake(self) -> None:
        """Note that another broker led it."""
        self._unproven, self._overtaken = object(), True

    async def look_who_led(self) -> None:
        """Verify leadership by a read while storage accepts no writes."""
        fenced_reason = self._unproven
        if (
            fenced_reason is None
            or self._overtaken
            or not await opened_last_by(self._storage, self._stream, self._epochs)
        ):
            return
        if self._unproven is fenced_reason:
            self._unproven = None

    async def save(self, shown: int | None, log_start: int) -> None:
        """Save changed producers, so that the next recovery reads few batches.

        Changes during the save wait for the next one: new producers may arrive faster than they are saved. An active
        producer's state may be newer than the snapshot's offset; transactions are as of that offset. `shown` is the
        high watermark, if readers wait for replicas. Aborted transactions before `log_start` are removed.

        Raises:
            Fenced: another broker led the log.
            UnknownTopic: the log was deleted.
            StorageUnavailable, StorageFull: storage cannot write.
        """
        try:
            await self._save(shown, log_start)
        except Fenced:
            self.overtake()
            raise
        except StorageNotWritten:
            await self.look_who_led()
            raise

    async def _save(self, shown: int | None, log_start: int) -> None:
        owner = self._owner
        as_of, unproven = (owner.next_offset, shown), self._unproven
        if as_of == self._saved_to and not owner.unsaved and unproven is None:
            return
        changed, transactions = owner.take_changed(), owner.transactions.take_changes(log_start)
        try:
            for start in range(0, max(len(changed), 1), _AT_ONCE):
                if owner is not self._owner:
                    return
                last = start + _AT_ONCE >= len(changed)
                offset, high_watermark = as_of if last else (None, None)
                changes = owner.as_they_are(changed[start : start + _AT_ONCE])
                await self._storage.save_producers(
                    self._stream, offset, changes, high_watermark, transactions if last else None
                )
        except BaseException:
            owner.keep_changed(changed)
            owner.transactions.keep_changes(transactions)
            raise
        if owner is self._owner:
            self._saved_to = as_of
            if self._unproven is unproven:
                self._unproven = None

    def expire_producers(self, before_ms: int) -> bool:
        """Forget producers last active before this time. Return whether there are changes to save."""
        forgotten = self._owner.expire(before_ms)
        if forgotten:
            _log.debug("idle producer states expired", topic=self._topic, partition=self._index, producers=forgotten)
        return self._owner.unsaved
