"""What is written down of one log beside its batches: its producers, and how far readers were shown it.

A write that Redis takes proves something, too: that no other broker has led the log since this server opened it.
"""

import asyncio
from typing import Protocol

import structlog

from headrace.aio.tasks import in_slices
from headrace.broker.partition.recovery import opened_last_by
from headrace.broker.ports import LogStorage
from headrace.broker.runtime.clock import Clock, pause
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import Fenced, StorageNotWritten, StorageUnavailable, TopicError
from headrace.topics.leader_epochs import LeaderEpochs

INTERVAL_MS = 1_000
_PARTITIONS_AT_ONCE = 64
_STOP_S = 3.0
"""How long a server that ends waits for all of them to be written down."""
_AT_ONCE = 1_000
"""Producers that are written down together: some milliseconds of the event loop."""
_log = structlog.get_logger("headrace.broker.partition")


class Saved(Protocol):
    """A partition whose producers are to be written down."""

    async def save_producers(self) -> None:
        """Write down what has changed. Raises TopicError when it could not be."""


class SnapshotSchedule:
    """The partitions that have something to write down."""

    def __init__(self) -> None:
        self._due: dict[Saved, None] = {}

    def add(self, partition: Saved) -> None:
        """It has changed since it was last written down."""
        self._due[partition] = None

    def discard(self, partition: Saved) -> None:
        """Save nothing of a partition that is deleted, or led elsewhere."""
        self._due.pop(partition, None)

    async def save_last(self, within_s: float = _STOP_S) -> None:
        """Write all of them down before the server ends, unless that takes too long.

        What is not written down is in the log's newest batches, which whoever opens it next goes through anyway.
        """
        try:
            async with asyncio.timeout(within_s):
                await self.save()
        except TimeoutError:
            _log.warning("producers were not written down: Redis takes too long; the next opening reads more batches")

    async def save(self) -> None:
        """Write all of them down; one that cannot be is tried again the next time."""
        due, self._due = list(self._due), {}
        async for _ in in_slices(due, self._save_one, _PARTITIONS_AT_ONCE):
            pass

    async def _save_one(self, partition: Saved) -> None:
        try:
            await partition.save_producers()
        except Exception as error:  # the others are saved all the same
            self._due[partition] = None
            if not isinstance(error, TopicError):
                _log.exception("a snapshot failed")

    async def keep_saving(self, clock: Clock) -> None:
        """Save at each interval; runs until it is cancelled."""
        while True:
            await pause(clock, INTERVAL_MS)
            await self.save()


class SavedLog(Protocol):
    """A log of which something is written down."""

    topic: str
    index: int
    stream: str
    deleted: bool

    @property
    def is_writable(self) -> bool:
        """Whether it is open here, and in no doubt."""

    @property
    def shown(self) -> int | None:
        """The high watermark, where readers wait for copies."""

    def lost(self, error: Exception) -> None:
        """Another broker has led it: the log is to be opened anew."""


class ProducerStateSnapshots:
    """Writes down what has changed of one log, and knows whether another broker may have led it."""

    __slots__ = (
        "_due", "_epochs", "_log", "_overtaken", "_owner", "_saved_to", "_snapshots", "_storage", "_unproven",
        "_writing",
    )  # fmt: skip

    def __init__(self, log: SavedLog, storage: LogStorage, snapshots: SnapshotSchedule) -> None:
        """Have nothing to write down.

        Args:
            log: the log.
            storage: where it is written down.
            snapshots: see to it that this happens within a second.
        """
        self._log = log
        self._storage = storage
        self._snapshots = snapshots
        self._due = False
        self._owner = OffsetAssigner(0)
        self._epochs: LeaderEpochs | None = None
        self._saved_to: tuple[int, int | None] = 0, None
        """Offset as of which the producers are written down, and the high watermark then."""
        self._writing = asyncio.Lock()
        self._unproven: object | None = None
        """Another broker may have led it since it was opened here, and shown more of it, until Redis has said that none
        has, asked from now on, or it is opened anew; None: nobody has. Each time it is another object."""
        self._overtaken = False
        """One has for certain: only an opening ends that, whatever an old primary says."""

    def begin(self, owner: OffsetAssigner, epochs: LeaderEpochs) -> None:
        """This server has just opened the log: nobody else leads it."""
        self._owner, self._epochs = owner, epochs
        self._saved_to = 0, None
        self._unproven, self._overtaken = None, False

    def soon(self) -> None:
        """Have written down within a second what has changed: of the producers, and the high watermark."""
        if not self._due:
            self._due = True
            self._snapshots.add(self)

    def use(self, snapshots: SnapshotSchedule) -> None:
        """Have others see to it from now on: those before may end with the virtual cluster that the log was in."""
        self._snapshots.discard(self)
        self._snapshots = snapshots
        # Also what those before are just writing down: they may fail. Where there is nothing to write, nothing is.
        snapshots.add(self)

    def end(self) -> None:
        """Write nothing down any more: it is deleted, or another broker's."""
        self._snapshots.discard(self)
        self._due = False

    def forget(self, ended: SavedLog) -> None:
        """The log is gone."""
        self._log = ended
        self.end()

    @property
    def proven(self) -> bool:
        """Whether nobody else can have led the log since it was opened here."""
        return self._unproven is None

    def led_elsewhere(self) -> None:
        """Another broker may have led it meanwhile, and be gone without a word: a write tells, within a second."""
        self._unproven = object()
        self.soon()

    def overtake(self, error: StorageUnavailable) -> None:
        """Another broker has led it for certain."""
        self._unproven, self._overtaken = object(), True
        self._log.lost(error)

    async def look_who_led(self) -> None:
        """Storage takes no write that would tell whether another broker has led it; but it can be read."""
        fenced_reason = self._unproven
        if (
            fenced_reason is None
            or self._overtaken
            or not await opened_last_by(self._storage, self._log.stream, self._epochs)
        ):
            return
        if self._unproven is fenced_reason:
            self._unproven = None

    async def save_producers(self) -> None:
        """Write down what has changed of the producers, so that the next opening reads few batches.

        Raises:
            StorageUnavailable, StorageFull: the log is opened anew where it has to be. Fenced, UnknownTopic.
        """
        async with self._writing:  # who comes next writes a later offset, for which all of this has to be there
            owner = self._owner
            self._due = False
            if self._log.is_writable:
                try:
                    await self._save(owner)
                except Fenced as error:
                    self.overtake(StorageUnavailable(str(error)))
                    raise
                except StorageNotWritten:
                    await self.look_who_led()
                    raise

    async def _save(self, owner: OffsetAssigner) -> None:
        """Write what has changed by now; of a producer that goes on meanwhile more may be written than the offset says.

        What changes from now on is not waited for: this would not end while producers come faster than they are saved.
        """
        as_of, unproven = (owner.next_offset, self._log.shown), self._unproven
        if as_of == self._saved_to and not owner.unsaved and unproven is None:
            return
        changed = owner.take_changed()
        try:
            for start in range(0, max(len(changed), 1), _AT_ONCE):
                if owner is not self._owner or self._log.deleted:
                    return
                last = start + _AT_ONCE >= len(changed)
                offset, high_watermark = as_of if last else (None, None)
                changes = owner.as_they_are(changed[start : start + _AT_ONCE])
                await self._storage.save_producers(self._log.stream, offset, changes, high_watermark)
        except BaseException:
            owner.keep_changed(changed)
            raise
        if owner is self._owner:
            self._saved_to = as_of
            if self._unproven is unproven:
                self._unproven = None

    def expire_producers(self, before_ms: int) -> None:
        """Forget producers that were last heard of before this time."""
        forgotten = self._owner.expire(before_ms)
        if self._owner.unsaved:
            self._snapshots.add(self)
        if forgotten:
            log = self._log
            _log.debug("silent producers forgotten", topic=log.topic, partition=log.index, producers=forgotten)
