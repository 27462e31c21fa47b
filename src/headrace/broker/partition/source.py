"""Define the reader's interface of a partition, whichever broker leads it."""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

from headrace.aio.tasks import log_unhandled
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, UnknownTopic
from headrace.topics.transactions import AbortedTransaction, Producers, Transactions

Watcher = Callable[[int], None]
"""Called with the bytes of each batch that becomes readable, and with 0 when the partition is removed."""
UNKNOWN_SIZE = 1 << 40
"""Reported for batches of unknown size. Large enough to wake every waiting fetch."""


class Isolation(IntEnum):
    """Isolation level of a reader (`isolation.level`), numbered as in the Kafka protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    @classmethod
    def of(cls, level: int) -> "Isolation":
        """Return the isolation level for its number in a Kafka request."""
        return cls.READ_COMMITTED if level == cls.READ_COMMITTED else cls.READ_UNCOMMITTED


UNCOMMITTED: Final = Isolation.READ_UNCOMMITTED
COMMITTED: Final = Isolation.READ_COMMITTED


class Readable(Protocol):
    """A partition that fetches can read."""

    @property
    def log_start(self) -> int:
        """First readable offset."""

    @property
    def local_start(self) -> int:
        """First offset in Redis. Earlier offsets from `log_start` are in the archive."""

    @property
    def log_end(self) -> int:
        """The high watermark: the offset after the last readable record."""

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may have gaps, so that they do not count records."""

    @property
    def cleaned_end(self) -> int:
        """Offset up to which a compacted log was cleaned, and may have gaps. 0: never."""

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end offset for a reader: the high watermark or the last stable offset."""

    def check_readable(self, offset: int) -> None:
        """Raise OffsetOutOfRange or UnknownTopic."""

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """Whether a read would find nothing."""

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Whether memory can answer a read, the log end included.

        `ahead` includes batches that were read ahead but not yet fetched.
        """

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Return whole batches from memory up to the visible end, and their size.

        See `Tail.read` and `read_stored`.
        """

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """Return whole batches from storage up to the visible end, and their size.

        Returns at least one batch if one exists. The first holds `offset`. With `join`, several batches may share a
        buffer, but the last is always separate. `first` limits the bytes of a native topic's first batch; a larger one
        raises NeedsRoom.
        """

    def check_stable(self) -> None:
        """Raise NotLeader if the last stable offset is not known yet."""

    @property
    def aborted_from(self) -> int:
        """Offset from which `aborted` is complete."""

    def aborted(self, offset: int, end: int, producers: Producers | None = None) -> list[AbortedTransaction]:
        """Return aborted transactions that begin before `end` and have their marker from `offset` on.

        Those with a marker before `aborted_from` are missing: see `aborted_before`. If there are many, those of other
        producers than `producers` may be left out.
        """

    async def aborted_before(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """Return those of `aborted` with a marker before the offset `before`, from storage.

        `producers`: as for `aborted`.
        """

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """Call `watcher` for every batch from now on, or when the last stable offset moves for committed records."""

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher`. Do nothing if it was not registered."""


def aborted_are_known(partition: Readable, offset: int, end: int, local_start: int) -> bool:
    """Whether `partition` still knows all aborted transactions of a range that was read for committed records.

    `local_start` is the first offset in Redis before the read. Retention may have removed some of them since, or a
    recovery may have begun. Then the range must be read again.
    """
    return partition.local_start <= max(offset, local_start) and end <= partition.visible_end(COMMITTED)


class AlwaysStable:
    """What `Readable` requires of a partition without transactions, which is never cleaned."""

    aborted_from = cleaned_end = 0

    @property
    def local_start(self) -> int:
        """Return 0, because aborted transactions are never removed."""
        return 0

    def check_stable(self) -> None:
        """Do nothing: every record is committed."""

    def aborted(self, offset: int, end: int, producers: Producers | None = None) -> list[AbortedTransaction]:
        """Return nothing."""
        return []

    async def aborted_before(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """Return nothing."""
        return []


class Source(Readable, Protocol):
    """A partition for reads and offset lookups, whichever broker leads it."""

    topic: str
    index: int
    stream: str
    """Redis key of its stream."""

    @property
    def deleted(self) -> bool:
        """Whether its topic is deleted."""

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last known opening (KIP-101); -1 if none is known."""

    def kept(self, offset: int, leader_epoch: int) -> int:
        """Return up to which offset a reader's log still matches; -1 if unknown.

        The reader is at `offset` under `leader_epoch`. The result is lower than `offset` if Redis lost records and
        others replaced them.
        """

    def certainly_past_end(self, offset: int) -> bool:
        """Whether an offset is certainly past the end, so that no reader reached it."""

    async def ask_end(self) -> None:
        """Refresh the end offset where other writers append as well.

        Raises:
            NotLeader: the high watermark is not known yet.
            StorageUnavailable: storage does not respond.
        """

    async def find_offset(self, timestamp: int, searcher: Searcher, isolation: Isolation = UNCOMMITTED) -> FoundOffset:
        """Look up an offset by timestamp (ms) or `timestamps.Special` (ListOffsets), before the visible end."""


def gone(partition: Source) -> UnknownTopic:
    """Return the error for a partition of a deleted topic."""
    return UnknownTopic(f"{partition.topic}-{partition.index} has been deleted")


def changing(partition: Source) -> StorageUnavailable:
    """Return the error for a partition during its conversion."""
    return StorageUnavailable(f"{partition.topic}-{partition.index}: its storage is being changed")


def outside(partition: Source, offset: int, log_start: int, log_end: int) -> OffsetOutOfRange:
    """Return the error for an offset outside `log_start` to `log_end`."""
    return OffsetOutOfRange(f"{partition.topic}-{partition.index}: offset {offset} is outside {log_start} to {log_end}")


class Watchers(set[Watcher]):
    """Callbacks of requests that wait for records of a partition."""

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """See `Readable.watch`, for a partition without transactions."""
        self.add(watcher)

    def notify(self, size: int) -> None:
        """Report `size` more bytes; 0 if the partition was removed."""
        for watcher in tuple(self):
            try:
                watcher(size)
            except Exception:
                # An error must not affect other watchers or the append.
                log_unhandled("a fetch that waits")


class StableWatchers(Watchers):
    """Callbacks of requests that wait for committed records. They are called only if the last stable offset moves.

    Otherwise, each append would wake every reader of committed records without a result.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unseen = 0
        """Bytes from the last stable offset on."""

    def begin(self) -> None:
        """Start after a recovery."""
        self._unseen = 0

    def grown(self, transactions: Transactions, before: int, log_end: int, size: int) -> None:
        """Report a high watermark that moved by `size` bytes from `before`, if the last stable offset moved."""
        stable_before = transactions.stable_end(before)
        transactions.finish(log_end)
        stable_end = transactions.stable_end(log_end)
        self._unseen += size
        if stable_end > stable_before and self:
            # The exact number of bytes is unknown. Too many only cause an early read.
            self.notify(self._unseen)
        if stable_end == log_end:
            self._unseen = 0
