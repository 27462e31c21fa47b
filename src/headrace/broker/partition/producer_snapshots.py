"""What is written down of one log beside its batches: its producers, and how far readers were shown it.

A write that Redis takes proves something, too: that no other broker has led the log since this server opened it.
"""

import asyncio
from typing import Protocol

import structlog

from headrace.broker.partition.recovery import opened_last_by
from headrace.broker.partition.snapshot_schedule import SnapshotSchedule
from headrace.broker.ports import LogStorage
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import Fenced, StorageUnavailable, StorageUnwritten
from headrace.topics.leader_epochs import LeaderEpochs

_AT_ONCE = 1_000
"""Producers that are written down together: some milliseconds of the event loop."""
_log = structlog.get_logger("headrace.broker.partition")


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
                except StorageUnwritten:
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
