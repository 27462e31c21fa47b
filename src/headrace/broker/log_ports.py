"""Interfaces that the broker requires of logs in storage, its own and native ones.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable`, or those documented.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.errors import TopicError
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Lost, OpenedLog, PlaceDone, StoredBatch
from headrace.topics.native import (
    Acknowledgement,
    Delivered,
    Entered,
    Extent,
    GroupLag,
    Limits,
    NativeRead,
    NativeStream,
    SharePosition,
    ShareRead,
)
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.segments import CleanedBatch, CleanedLog
from headrace.topics.transactions import AbortedTransaction, Producers, TransactionChanges, Transactions


class LogLookup(Protocol):
    """Readable logs."""

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """Return at most `count` batches up to offset `end`, from the one with `offset` or the next one.

        With `join`, contiguous batches except the last may be joined up to that many bytes, and more returned.
        """

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """Return the first batch with a record of this timestamp (ms) or later."""

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """Return the first batch with the log's largest timestamp."""


class LogLook(LogLookup, Protocol):
    """A recent state of a log that another server leads."""

    @property
    def log_start(self) -> int:
        """First readable offset."""

    @property
    def next_offset(self) -> int:
        """Log end offset."""

    @property
    def epochs(self) -> LeaderEpochs | None:
        """Leader epochs. None: never recovered."""

    @property
    def high_watermark(self) -> int:
        """Last stored high watermark, possibly an earlier one. 0: none."""

    @property
    def cleaned(self) -> CleanedLog:
        """Last known cleaned segments."""

    async def transactions(self) -> Transactions | None:
        """Return the log's transactions up to its end; None if their index is lost."""

    async def aborted(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """See `LogStorage.aborted`."""


class InSyncReplicas(Protocol):
    """Number of servers that have acknowledged data (`min.insync.replicas`)."""

    @property
    def can_replicate(self) -> bool:
        """Whether replicas are possible."""

    def primary(self, stream: str) -> object:
        """Return a stream's primary, equal while writes use the same connection to the same server."""

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: PlaceDone) -> None:
        """Call `done` when `copies` servers have everything acknowledged of a stream so far.

        `done` gets None, NotEnoughReplicasAfterAppend after `wait_ms` or `replica.lag.time.max.ms` or with too few
        servers, or StorageUnavailable for a lost connection. Without `wait_ms`, NotEnoughReplicasAfterAppend means that
        the server stops.
        """

    def why_too_few(self, stream: str, copies: int) -> str:
        """Return why fewer than `copies` servers would have an append now. Empty: not known to be so."""


class LogSegments(Protocol):
    """Cleaned segments of the logs that this server leads.

    Writes raise OffsetOutOfRange and change nothing if the log is another one by now.
    """

    def cleaned(self, stream: str) -> CleanedLog:
        """Return the last known segments of a log; none if it is not open."""

    async def read(self, stream: str, number: int, offset: int, count: int) -> list[StoredBatch]:
        """Return at most `count` batches of a segment from `offset` on; none at its end."""

    async def advance(self, stream: str, number: int, start: int, end: int, batches: Sequence[CleanedBatch]) -> None:
        """Replace the batches of the stream from `start`, where the log begins in it, to `end` by those kept of them.

        They are added to the last segment, or begin the next one. `number` is that segment's. `end` is at most the
        offset of the last `save_producers`, and the base offset of a batch.
        """

    async def write(self, stream: str, number: int, batches: Sequence[CleanedBatch]) -> None:
        """Add batches to the segment that will replace another one. It begins with the next number."""

    async def swap(self, stream: str, numbers: Sequence[int], replacement: int | None) -> None:
        """Replace neighboring segments by the written one; None removes them."""

    async def is_memory_short(self, stream: str) -> bool:
        """Whether the Redis of a log has used most of its `maxmemory`."""

    async def close(self, stream: str) -> None:
        """Remove a written segment that replaced none, if there is one."""


class LogStorage(LogLookup, Protocol):
    """Logs that this server leads. It assigns offsets; storage writes a batch there or not at all."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

    @property
    def segments(self) -> LogSegments:
        """Cleaned segments."""

    async def look(self, stream: str) -> LogLook:
        """Return a log's current state."""

    async def open(self, stream: str, lost: Lost, *, create: bool = False, view: int | None = None) -> OpenedLog:
        """Recover a log: fence earlier leaders, and return its bounds.

        `lost` is called once when ownership is in doubt. The log must then be recovered before any write. Raises
        UnknownTopic without `create` if it is missing, and Fenced if a view later than `view` exists.
        """

    def forget(self, stream: str, lost: Lost) -> None:
        """Forget a deleted log by its `lost`, unless recovered again since. Writes in flight fail without a call."""

    def place(self, stream: str, append: Append, base_offset: int, done: PlaceDone) -> None:
        """Write a batch, stamped with its offset, after the previous one.

        `done` gets None once it is acknowledged, else the error, which puts ownership in doubt. It is called before
        this returns if the outcome is certain, else in order from the connection's reader. Batches of one event loop
        turn are written together.
        """

    async def settle(self, stream: str) -> None:
        """Return when everything acknowledged is readable from storage."""

    async def save_producers(
        self,
        stream: str,
        offset: int | None,
        changes: dict[int, ProducerStateEntry | None],
        high_watermark: int | None = None,
        transactions: TransactionChanges | None = None,
    ) -> None:
        """Save changes of producers and transactions as of `offset`. None removes a producer.

        `offset`: None while more follows; such changes may be ahead of the last `offset`. `high_watermark`: that of
        readers that wait for replicas, if any.
        """

    def allow_transactions(self) -> "asyncio.Task[None] | None":
        """Begin to keep servers out that know no transactions, before the first one. None: done."""

    async def rebuild_transactions(self, stream: str) -> Transactions:
        """Return the transactions from all batches of a log as it was opened: their index is lost."""

    async def aborted(
        self, stream: str, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """Return saved aborted transactions by marker.

        Their markers are from `offset` to before the offset `before`, and they begin before `end`. If there are many,
        those of other producers than `producers` may be left out.
        """

    async def trim(
        self,
        stream: str,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
        up_to: int | None = None,
    ) -> int:
        """Drop leading batches older than `before_ms`, beyond `max_bytes` or before an offset.

        Return the log start offset, which never passes the offset of the last `save_producers`, nor `up_to`.
        """

    async def size(self, stream: str) -> int:
        """Return the bytes of the log's record batches."""

    async def mirror_offset(self, stream: str, group: str, offset: int) -> None:
        """Set the last delivered id of a Redis consumer group to an offset."""


class NativeShares(Protocol):
    """Share groups of plain streams: a share group is the Redis consumer group of its name.

    Members can acquire and acknowledge after `begin` or `alter`. Before, UnknownTopic is raised.
    """

    async def begin(self, stream: NativeStream, group: str, create_at: int | None) -> None:
        """Let a group begin at an offset, or at the log end for None. Do nothing if it exists."""

    async def acquire(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        limits: Limits,
        count: int,
        limit: int,
        *,
        create_at: int | None,
        first: int = LARGEST_ENTRY,
        expired: bool = True,
    ) -> ShareRead:
        """Acquire at most `count` entries of about `limit` bytes: released, timed out and new ones.

        If the first one exceeds `first` bytes, nothing is acquired, and `wants` has its size. A group that a program
        destroyed is created again as by `begin`. Without `expired`, ended locks are not looked for.
        """

    async def acknowledge(
        self, stream: NativeStream, group: str, member: str, limits: Limits, given: Sequence[Acknowledgement]
    ) -> list[Delivered] | None:
        """Apply all acknowledgements, in the order of their offsets. None: the member does not have all; no change.

        Return released entries that reached the maximum number of deliveries, which are done or kept for their copies
        instead. Raises GroupGone.
        """

    async def release(self, stream: NativeStream, group: str, member: str, limits: Limits) -> list[Delivered]:
        """Release everything that a member has, and remove it. Return as `acknowledge`."""

    async def dead_letters(self, stream: NativeStream, group: str) -> list[Delivered]:
        """Return the first entries that wait for their copies in the dead letter topic. Empty if there is no group."""

    async def bury(self, stream: NativeStream, group: str, letters: Sequence[Delivered]) -> None:
        """Acknowledge dead letters whose copies exist."""

    async def alter(self, stream: NativeStream, group: str, offset: int) -> None:
        """Let the group begin at an offset. Pending entries are forgotten, those of Redis programs included."""

    async def describe(self, stream: NativeStream, group: str) -> SharePosition | None:
        """Return the group's position. None: it has not begun."""

    async def delete(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program uses it. Return whether it was destroyed."""


class NativeStorage(Protocol):
    """Plain streams and their consumer groups. Also raises `NotAStream` for a key of another type."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

    @property
    def shares(self) -> NativeShares:
        """Share groups."""

    async def open(self, stream: NativeStream, *, must_exist: bool = False) -> Extent:
        """Fence earlier servers, and return the partition's bounds."""

    async def extent(self, stream: NativeStream) -> Extent:
        """Return the current bounds."""

    async def size(self, stream: NativeStream) -> int:
        """Return the stream's approximate bytes in Redis. 0: it does not exist."""

    async def ahead_ms(self, stream: NativeStream) -> int:
        """Return the most milliseconds by which a record's timestamp was ahead of its offset's."""

    def append(
        self, stream: NativeStream, append: Append, done: AppendDone, *, follows: bool = False, least: int = 0
    ) -> None:
        """Append the records of a batch, all or none. Raises CorruptBatch for unreadable ones.

        It may wait for room; then `done` gets CorruptBatch. Appends to one stream keep their order. `follows`: earlier
        batches of its producer are in flight, so it is out of order if Redis knows none. `least`: its minimum offset.
        """

    def refuse_waiting(self, stream: NativeStream, error: TopicError) -> None:
        """Reject waiting appends to a stream without topic."""

    async def settle(self, stream: NativeStream) -> None:
        """Return when all earlier appends have their result."""

    async def read(
        self, stream: NativeStream, offset: int, limit: int, before: int | None = None, *, first: int = LARGEST_ENTRY
    ) -> NativeRead:
        """Return entries from `offset` to `before`, of about `limit` bytes, but at least one.

        If that one exceeds `first` bytes, nothing is read, and `wants` has its size.
        """

    async def read_last(
        self, stream: NativeStream, before: int, limit: int, *, first: int = LARGEST_ENTRY
    ) -> NativeRead:
        """Return the last entries below an offset, in order. `first` limits the last of them."""

    async def read_new(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        count: int,
        limit: int,
        *,
        last_id: str,
        at: int,
        first: int = LARGEST_ENTRY,
    ) -> NativeRead:
        """Return new entries of the group, which become pending for `member`: at most `count`, otherwise as `read`.

        Raises GroupGone; GroupPassed if another member has entered, or the group has left `last_id` and its members
        have pending entries from `at` on.
        """

    async def read_pending(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        offset: int,
        limit: int,
        before: int,
        *,
        first: int = LARGEST_ENTRY,
    ) -> NativeRead:
        """Return entries from `offset` to `before` that are pending for `member`. Raises GroupGone."""

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        """Whether no entry exists from an offset, or after an id, to before another offset."""

    async def trim(
        self,
        stream: NativeStream,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
    ) -> Extent:
        """Trim by time, bytes or offset."""

    def watch(self, stream: NativeStream, after: int, woken: Callable[[int | None], None]) -> None:
        """Call `woken` once when an entry exists at or after an offset, written by any client.

        It gets the log end offset, or None if that must be read.
        """

    def unwatch(self, stream: NativeStream) -> None:
        """Stop watching."""

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        """Enter a member: create the group if missing, and take over earlier owners' pending entries."""

    async def commit(self, stream: NativeStream, group: str, offset: int, kind: str = "") -> tuple[int, bool]:
        """Acknowledge entries below an offset. Return their number, and whether the group moved."""

    async def position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        """Return a group's offset, as set by any client. None: it has not begun."""

    async def given_until(self, stream: NativeStream, group: str) -> int | None:
        """Return the offset after all delivered entries. None: no such Redis group. Read only."""

    async def leave(self, stream: NativeStream, group: str, member: str) -> bool:
        """Remove a member's consumer if it has no pending entries."""

    async def forget_group(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program uses it."""

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]:
        """Return all Redis consumer groups with their lag."""
