"""Interfaces that the broker requires of its storage.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable`, or those documented.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from headrace.groups.model import GroupChange, StoredGroup
from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Leader, Lock, Member, View
from headrace.metrics.unreadable_values import Unreadable
from headrace.records.streams import LARGEST_ENTRY
from headrace.topics.errors import TopicError
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import Append, AppendDone, Lost, OpenedLog, PlaceDone, StoredBatch, Topic
from headrace.topics.native import Entered, Extent, GroupLag, NativeRead, NativeStream
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.transactions import AbortedTransaction, TransactionChanges, Transactions
from headrace.transactions.model import StoredTransaction, TransactionChange


class TopicStorage(Protocol):
    """Registry of one virtual cluster's topics."""

    async def load(self) -> list[Topic]:
        """Return all readable topics in name order."""

    async def find(self, name: str) -> Topic | None:
        """Return a stored topic, if any. Raises UnreadableTopic."""

    def unreadable(self, name: str) -> str | None:
        """Return why an entry is unreadable, if known."""

    async def delete_unreadable(self, name: str) -> None:
        """Remove an unreadable entry and its data. Raises UnknownTopic: it is readable."""

    async def create(self, topic: Topic) -> None:
        """Store a new topic. Raises TopicExists."""

    async def replace(self, topic: Topic, before: Topic, view: int | None = None) -> None:
        """Replace a stored topic. Old streams of a converted one are left to `finish_deletions`.

        Raises:
            TopicChanged: it is not `before`; Fenced: a view later than `view` exists. Nothing was stored.
        """

    async def delete(self, topic: Topic) -> Topic:
        """Remove the registry entry first, then the streams and side keys.

        Returns:
            The stored topic, with partitions that another broker has added.

        Raises:
            UnknownTopic: another broker has deleted it, or moved it to another virtual cluster. Nothing was removed.
        """

    async def drop_streams(self, topic: Topic) -> None:
        """Remove a topic's streams and side keys, except adopted ones, but not its registry entry."""

    async def note(self, topic: Topic) -> None:
        """Note future streams. `finish_deletions` removes them unless a topic has them by then."""

    async def finish_deletions(self, of: Topic | None = None) -> None:
        """Remove noted streams that no topic has. `load` completes an interrupted run.

        `of` is a topic about to be moved or converted.

        Raises:
            InvalidConfig: an unreadable note may name streams of this topic, which would be removed later.
        """

    async def allocate_producer_ids(self, count: int) -> int:
        """Return the first of `count` ids, unique in all virtual clusters."""


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

    async def transactions(self) -> Transactions | None:
        """Return the log's transactions up to its end; None if their index is lost."""

    async def aborted(self, offset: int, before: int, end: int) -> list[AbortedTransaction]:
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


class LogStorage(LogLookup, Protocol):
    """Logs that this server leads. It assigns offsets; storage writes a batch there or not at all."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

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

    async def aborted(self, stream: str, offset: int, before: int, end: int) -> list[AbortedTransaction]:
        """Return saved aborted transactions by marker.

        Their markers are from `offset` to before the offset `before`, and they begin before `end`.
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


class NativeStorage(Protocol):
    """Plain streams and their consumer groups. Also raises `NotAStream` for a key of another type."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

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


class GroupStorage(Protocol):
    """Consumer groups of one virtual cluster."""

    async def load(self) -> list[StoredGroup]:
        """Return all groups."""

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        """Store all changes atomically, except very many offsets.

        Those are stored a few hundred at a time, the last ones with the rest. After a failure some are stored, and the
        client commits again. Raises Fenced if another broker owned the group by a later view.
        """

    async def names(self) -> list[str]:
        """Return all groups' names. Some may have ended."""

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        """Take over a group as its owner by the view of that number (None: the current one). Raises Fenced.

        Returns an empty group if none is stored.
        """

    def is_offline(self, group: str) -> bool:
        """Whether its keys had unexpected contents: it can only be deleted."""

    async def drop_offline(self, group: str) -> None:
        """Remove the keys of such a group."""

    def forget(self, group: str) -> None:
        """Forget a group that another broker owns."""


class TransactionStorage(Protocol):
    """Transactional IDs of one virtual cluster."""

    async def names(self) -> list[str]:
        """Return all transactional IDs. Some may have expired."""

    async def load_one(self, name: str, view: int | None = None) -> StoredTransaction:
        """Take over a transactional ID as its owner by the view of that number (None: the current one).

        Returns `NEW` if none is stored. Raises Fenced, and TopicError for one that is unreadable.
        """

    async def save(self, name: str, change: TransactionChange, view: int | None = None) -> None:
        """Store a change. A decision is replicated when this returns.

        Raises Fenced if another broker owned the ID by a later view.
        """

    def forget(self, name: str) -> None:
        """Forget a transactional ID that another broker owns."""


class DocumentStorage(Protocol):
    """Small values of listeners, such as OCI's stream pools, by kind and id."""

    @property
    def unreadable(self) -> Unreadable:
        """Unreadable values of the storage, as noted by readers."""

    async def load(self, kind: str) -> dict[str, bytes]:
        """Return the documents of a kind by id. A kind has letters, digits, `.`, `_` and `-`."""

    async def find(self, kind: str, names: Sequence[str]) -> dict[str, bytes]:
        """Return the documents of a kind with these ids, by id, without those that do not exist."""

    async def save(
        self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None
    ) -> Mapping[str, int]:
        """Store all changes atomically and durably. Return new revisions of their kinds; none for a single broker.

        Maps (kind, id) to the new document; None removes it. `lock` is the one under which the changes were decided, if
        any.

        Raises:
            LockLost: the lock was lost, nothing was written; StorageUnavailable, StorageFull, Fenced.
        """

    def locked(self, name: str) -> AbstractAsyncContextManager[Lock]:
        """Hold a lock among brokers. A single broker never waits.

        A holder that dies loses it after a few seconds. Raises LockLost if others held it too long, StorageUnavailable.
        """

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        """Store a document unless it exists. Return the stored one."""


class Storage(Protocol):
    """Storage of one virtual cluster. Logs, native streams and documents are common to all clusters."""

    @property
    def topics(self) -> TopicStorage:
        """Registry of topics."""

    @property
    def logs(self) -> LogStorage:
        """Logs."""

    @property
    def native(self) -> NativeStorage:
        """Streams of native topics."""

    @property
    def groups(self) -> GroupStorage:
        """Consumer groups."""

    @property
    def transactions(self) -> TransactionStorage:
        """Transactional IDs."""

    @property
    def documents(self) -> DocumentStorage:
        """Documents of listeners."""


class Change(Protocol):
    """A change made by a broker."""

    @property
    def kind(self) -> str:
        """`view`, `topics`, `documents` or `leaders`."""

    @property
    def name(self) -> str:
        """The topic's name; kinds of documents; streams and leaders."""

    @property
    def cluster(self) -> str:
        """The topic's virtual cluster."""


class MembershipStorage(Protocol):
    """Data that the brokers of a keyspace share. All calls raise StorageUnavailable."""

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        """Send a heartbeat. Return the view, all counters, and the id of the last change."""

    async def change(self, proposal: Proposal) -> View:
        """Store a proposed view unless another broker was faster. Return the current one."""

    def enter(self, number: int) -> None:
        """Write under the number of this view from now on."""

    async def changes(self, after: str, wait_ms: int) -> Sequence[tuple[str, Change]]:
        """Return changes after an id, waiting up to `wait_ms`."""

    async def has_change(self, change_id: str) -> bool:
        """Whether a change still exists: neither lost in a failover nor trimmed.

        For `0-0`: whether none was trimmed.
        """

    async def last_change(self) -> str:
        """Return the id of the last change. `0-0`: none."""

    async def leaders(self) -> dict[str, Leader]:
        """Return the leaders by stream."""

    async def publish(self, leaders: Mapping[str, Leader]) -> None:
        """Publish leaders to all brokers, including this one. Also raises Fenced."""


class ClusterStorage(Storage, Protocol):
    """Storage of a server with several virtual clusters. Its own data is the default one's."""

    def in_cluster(self, name: str) -> Storage:
        """Return another virtual cluster's storage, with separate topics and groups."""

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        """Move a topic to another virtual cluster, with its streams. Raises UnknownTopic, TopicExists."""
