"""What readers see of a partition, wherever it is led, and how they hear of new records."""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from headrace.aio.tasks import log_unhandled
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, UnknownTopic

Watcher = Callable[[int], None]
"""Called with the size in bytes of each batch as it becomes readable; with 0 when the partition goes away."""
UNKNOWN_SIZE = 1 << 40
"""Said of what comes without its size being known: enough for whoever waits to look again."""


class Isolation(IntEnum):
    """Which records a reader sees (`isolation.level`); the numbers are those of the Kafka protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, level: int) -> "Isolation":
        """The isolation that a request of the Kafka protocol asks for."""
        return cls.READ_COMMITTED if level == cls.READ_COMMITTED else cls.READ_UNCOMMITTED


UNCOMMITTED: Final = Isolation.READ_UNCOMMITTED


class Readable(Protocol):
    """A partition, as whoever fetches may read it."""

    @property
    def log_start(self) -> int:
        """First offset that may be read."""

    @property
    def log_end(self) -> int:
        """The offset behind the last record that may be read: the high watermark."""

    @property
    def has_gaps(self) -> bool:
        """Whether offsets between its records may belong to none: offsets then do not count records."""

    def visible_end(self, isolation: Isolation) -> int:
        """The offset behind the last record that a reader sees: the high watermark, or the last stable offset."""

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange or UnknownTopic."""

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Whether a reader that sees so much would find nothing."""

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether a read can be answered from memory (the log end itself included).

        `ahead`: also from what was read ahead, and was in storage only until somebody came for it.
        """

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Whole batches from memory up to the visible end, and their size; see `Tail.read` and `read_stored`."""

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """Whole batches from storage up to the visible end, and their size: at least one if there is one.

        The first is the one that holds `offset`.
        Where they are to `join`, several may come as one buffer, but the last is always by itself. `first`: bytes that
        the first may have, in a native topic; NeedsRoom is raised where it has more. Those of a log have a bound.
        """

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every batch from now on."""

    def unwatch(self, watcher: Watcher) -> None:
        """Stop telling; harmless when it was not watching."""


class Source(Readable, Protocol):
    """A partition that records are read from and looked up in, wherever it is led."""

    topic: str
    index: int
    stream: str
    """The Redis key of its stream."""

    @property
    def deleted(self) -> bool:
        """Whether its topic is gone."""

    @property
    def local_start(self) -> int:
        """First offset that lies in Redis; those before it, from `log_start` on, are in the archive."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the last opening that is known of (KIP-101); -1: none is."""

    def kept(self, offset: int, leader_epoch: int) -> int:
        """How far the log is what it was for who came to `offset` under this leader epoch; -1: that is not known.

        That is `offset`, or where Redis came back with less: there others have come in their place.
        """

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is certain to lie behind all that there is, so that no reader can have come to it."""

    async def ask_end(self) -> None:
        """Know where it ends by now, where others append to it as well.

        Raises NotLeader where it is not known how far it may be read, since its copies are waited for;
        StorageUnavailable.
        """

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """ListOffsets: by a timestamp (ms) or a `timestamps.Special`; `searcher` looks into the batches.

        Nothing is found from the visible end on.
        """


def gone(partition: Source) -> UnknownTopic:
    """Why a partition of a deleted topic can be neither read nor written."""
    return UnknownTopic(f"{partition.topic}-{partition.index} has been deleted")


def changing(partition: Source) -> StorageUnavailable:
    """Why a partition that is being converted takes nothing just now."""
    return StorageUnavailable(f"{partition.topic}-{partition.index}: its storage is being changed")


def outside(partition: Source, offset: int, log_start: int, log_end: int) -> OffsetOutOfRange:
    """Why nothing can be read at an offset of a log that reaches from `log_start` to `log_end`."""
    return OffsetOutOfRange(f"{partition.topic}-{partition.index}: offset {offset} is outside {log_start} to {log_end}")


class Watchers(set[Watcher]):
    """Those who wait for records of a partition."""

    def notify(self, size: int) -> None:
        """There are so many bytes more; 0: the partition went away."""
        for watcher in tuple(self):
            try:
                watcher(size)
            except Exception:
                # All others are told, and whoever has appended the batch.
                log_unhandled("a fetch that waits")
