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
from headrace.topics.errors import Fenced, StorageNotWritten, TopicError
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


class ProducerStateSnapshots:
    """Writes down what has changed of one log, and knows whether another broker may have led it."""

    __slots__ = (
        "_epochs", "_index", "_overtaken", "_owner", "_saved_to", "_storage", "_stream", "_topic", "_unproven",
    )  # fmt: skip

    def __init__(self, topic: str, index: int, stream: str, storage: LogStorage) -> None:
        """Have nothing to write down.

        Args:
            topic: the topic's name.
            index: the partition's number.
            stream: the Redis key of its stream.
            storage: where it is written down.
        """
        self._topic = topic
        self._index = index
        self._stream = stream
        self._storage = storage
        self._owner = OffsetAssigner(0)
        self._epochs: LeaderEpochs | None = None
        self._saved_to: tuple[int, int | None] = 0, None
        """Offset as of which the producers are written down, and the high watermark then."""
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

    def end(self) -> None:
        """The log is gone: write nothing down any more."""
        self._owner = OffsetAssigner(0)

    @property
    def proven(self) -> bool:
        """Whether nobody else can have led the log since it was opened here."""
        return self._unproven is None

    def led_elsewhere(self) -> None:
        """Note that another broker may have led it and ended. The next write reports it."""
        self._unproven = object()

    def overtake(self) -> None:
        """Another broker has led it for certain."""
        self._unproven, self._overtaken = object(), True

    async def look_who_led(self) -> None:
        """Storage takes no write that would tell whether another broker has led it; but it can be read."""
        fenced_reason = self._unproven
        if (
            fenced_reason is None
            or self._overtaken
            or not await opened_last_by(self._storage, self._stream, self._epochs)
        ):
            return
        if self._unproven is fenced_reason:
            self._unproven = None

    async def save(self, shown: int | None) -> None:
        """Write down what has changed of the producers, so that the next opening reads few batches.

        What changes from now on is not waited for: this would not end while producers come faster than they are saved.
        The entry of a producer that continues to write may be newer than the offset.

        Args:
            shown: the high watermark, where readers wait for copies.

        Raises:
            StorageUnavailable, StorageFull; Fenced: another broker has led the log. UnknownTopic.
        """
        try:
            await self._save(shown)
        except Fenced:
            self.overtake()
            raise
        except StorageNotWritten:
            await self.look_who_led()
            raise

    async def _save(self, shown: int | None) -> None:
        owner = self._owner
        as_of, unproven = (owner.next_offset, shown), self._unproven
        if as_of == self._saved_to and not owner.unsaved and unproven is None:
            return
        changed = owner.take_changed()
        try:
            for start in range(0, max(len(changed), 1), _AT_ONCE):
                if owner is not self._owner:
                    return
                last = start + _AT_ONCE >= len(changed)
                offset, high_watermark = as_of if last else (None, None)
                changes = owner.as_they_are(changed[start : start + _AT_ONCE])
                await self._storage.save_producers(self._stream, offset, changes, high_watermark)
        except BaseException:
            owner.keep_changed(changed)
            raise
        if owner is self._owner:
            self._saved_to = as_of
            if self._unproven is unproven:
                self._unproven = None

    def expire_producers(self, before_ms: int) -> bool:
        """Forget producers that were last heard of before this time; whether there is something to write down."""
        forgotten = self._owner.expire(before_ms)
        if forgotten:
            _log.debug("silent producers forgotten", topic=self._topic, partition=self._index, producers=forgotten)
        return self._owner.unsaved
