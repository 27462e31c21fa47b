"""A log that another broker leads, read straight from storage: as it was when it was looked at, for one request."""

import asyncio
from typing import TYPE_CHECKING, Self

from headrace.broker import offsets
from headrace.broker.cache import Buffer
from headrace.broker.log import LogPartition
from headrace.broker.partition import Watcher, gone, outside
from headrace.broker.ports import LogLook, LogStorage
from headrace.broker.reading import first_readable, fitting
from headrace.broker.replication import have_come, not_known, shown_of
from headrace.topics.errors import StorageUnavailable

if TYPE_CHECKING:
    from headrace.broker.cold import ColdPartition

_AT_ONCE = 64
"""Batches of one read: whoever wants more reads on."""
_WOKEN_S = 1.0
"""A primary that stood still until its replica was promoted tells what it had, until the others tell it so: where a
reader has come further, it is asked once more after this."""


class FollowedLog:
    """Implements `headrace.broker.partition.Source`. Nobody waits for records here, and nothing is in memory."""

    def __init__(self, partition: LogPartition, look: LogLook, log_end: int, *, proved: bool) -> None:
        """Use `look_at`. `proved`: that there is no more than `log_end` for readers."""
        self.topic = partition.topic
        self.index = partition.index
        self.stream = partition.stream
        self.local_start = look.log_start
        self.log_end = log_end
        self._proved = proved
        self._partition = partition
        self._look = look

    @classmethod
    async def look_at(cls, partition: LogPartition, storage: LogStorage, offset: int) -> Self:
        """The log as it is now, up to where it has the copies that its topic wants (`min.insync.replicas`).

        Where they do not come in time, that is as far as they were seen to be there before: readers go no further.

        Args:
            partition: the partition.
            storage: where the log is.
            offset: what is to be read next: a primary that was replaced may not have come to it.

        Raises:
            StorageUnavailable.
        """
        stream, copies = partition.stream, storage.copies
        way = copies.way(stream)
        look = await storage.look(stream)
        if offset > look.next_offset and partition.replication.wanted == 1 and copies.possible:
            await asyncio.sleep(_WOKEN_S)
            way = copies.way(stream)
            look = await storage.look(stream)
        end, proved, epochs = look.next_offset, True, look.epochs
        known = 0 if epochs is None else shown_of(partition.log_end, partition.replication.known_by, look, epochs)
        if partition.replication.wanted > 1 and copies.possible and (end != known or offset > end):
            proved = await have_come(copies, stream, partition.replication.wanted)
            if copies.way(stream) != way:
                raise StorageUnavailable(f"another primary may have taken over while {stream} was looked at")
            if not proved:
                end = known
            elif epochs is not None:
                partition.replication.learn_end(end, epochs.rows[-1].epoch)
        return cls(partition, look, end, proved=proved)

    @property
    def _cold(self) -> "ColdPartition | None":
        return self._partition.cold

    @property
    def deleted(self) -> bool:
        """Whether its topic is gone."""
        return self._partition.deleted

    @property
    def log_start(self) -> int:
        """First offset that may be read."""
        return first_readable(None if self._cold is None else self._cold.start, self.local_start)

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange or UnknownTopic."""
        if self.deleted:
            raise gone(self)
        if offset < self.log_start or self.beyond(offset):
            raise outside(self, offset, self.log_start, self.log_end)

    def beyond(self, offset: int) -> bool:
        """Whether an offset is certain to lie behind all that there is."""
        return self._proved and offset > self.log_end

    def _check_end(self) -> None:
        """Raise NotLeader where it is not known how far the log can be read."""
        if not self._proved:
            raise not_known(f"{self.topic}-{self.index}")

    async def ask_end(self) -> None:
        """Known: it was looked at. Raises NotLeader where that did not tell."""
        self._check_end()

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing."""
        return offset >= self.log_end

    def cached(self, offset: int) -> bool:
        """Only that there is nothing at the end is known."""
        return offset >= self.log_end

    def read_cached(self, offset: int, limit: int, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """An empty answer: nothing is cached."""
        return [], 0

    async def read_stored(self, offset: int, limit: int) -> tuple[list[Buffer], int]:
        """Batches from storage, the one holding `offset` first, or from the archive what is there no more."""
        cold = self._cold
        if cold is not None and offset < self.local_start and cold.has(offset, self.local_start):
            old = await cold.read(offset, self.local_start, limit)
            if old:
                return fitting(old, limit)
        return fitting(await self._look.read(self.stream, offset, _AT_ONCE, self.log_end), limit)

    async def find_offset(self, timestamp: int, opener: offsets.Opener) -> offsets.FoundOffset:
        """See `broker.offsets.find`."""
        return await offsets.find(self._look, self, timestamp, opener, self._cold)

    def watch(self, watcher: Watcher) -> None:
        """Tell nothing: what was looked at does not grow."""

    def unwatch(self, watcher: Watcher) -> None:
        """There is no watcher to remove: `watch` keeps none."""
