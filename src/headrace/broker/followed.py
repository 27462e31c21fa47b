"""A log that another broker leads, read straight from storage: as it was when it was looked at, for one request."""

from typing import TYPE_CHECKING, Self

from headrace.broker import offsets
from headrace.broker.cache import Buffer
from headrace.broker.log import LogPartition
from headrace.broker.partition import Watcher
from headrace.broker.ports import LogLook, LogStorage
from headrace.broker.reading import first_readable, fitting
from headrace.topics.errors import OffsetOutOfRange, UnknownTopic

if TYPE_CHECKING:
    from headrace.broker.cold import ColdPartition

_AT_ONCE = 64
"""Batches of one read: whoever wants more reads on."""


class FollowedLog:
    """Implements `headrace.broker.partition.Source`. Nobody waits for records here, and nothing is in memory."""

    def __init__(self, partition: LogPartition, look: LogLook) -> None:
        """Use `look_at`."""
        self.topic = partition.topic
        self.index = partition.index
        self.stream = partition.stream
        self.local_start = look.log_start
        self.log_end = look.next_offset
        self._partition = partition
        self._look = look

    @classmethod
    async def look_at(cls, partition: LogPartition, storage: LogStorage) -> Self:
        """The log as it is now. Raises StorageUnavailable."""
        return cls(partition, await storage.look(partition.stream))

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
            raise UnknownTopic(f"{self.topic}-{self.index} has been deleted")
        if not self.log_start <= offset <= self.log_end:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is outside {self.log_start} to {self.log_end}"
            )

    def at_end(self, offset: int) -> bool:
        """Whether a read would find nothing."""
        return offset >= self.log_end

    def cached(self, offset: int) -> bool:
        """Only that there is nothing at the end is known."""
        return offset >= self.log_end

    def read_cached(self, offset: int, limit: int, *, whole_first: bool) -> tuple[list[Buffer], int]:
        """Nothing."""
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
        """Nothing was told."""
