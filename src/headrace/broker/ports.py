"""The interfaces that the broker requires of its storage. `storage` implements them, and `server` connects both.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable`, or what they name.
"""

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


class TopicStorage(Protocol):
    """The registry of one virtual cluster's topics."""

    async def load(self) -> list[Topic]:
        """Every topic whose entry can be read, in name order."""

    async def find(self, name: str) -> Topic | None:
        """The topic of that name as it is stored; None when there is none. Raises UnreadableTopic."""

    def unreadable(self, name: str) -> str | None:
        """Why the entry of a name cannot be read; None: it can be, or there is none, as far as is known."""

    async def delete_unreadable(self, name: str) -> None:
        """Remove an entry that cannot be read, and what it has. Raises UnknownTopic: it can be read."""

    async def create(self, topic: Topic) -> None:
        """Raises TopicExists when the name is taken."""

    async def replace(self, topic: Topic, before: Topic, view: int | None = None) -> None:
        """Store a changed topic (configuration, more partitions) in place of what it was.

        Where it has another storage from now on its old streams are to go: see `finish_deletions`.

        Args:
            topic: as it is from now on.
            before: what it has to be now.
            view: the number of the view that has to be the present one; None: any.

        Raises:
            TopicChanged: it is not `before`; Fenced: there is a later view; nothing was stored.
        """

    async def delete(self, topic: Topic) -> Topic:
        """Remove the registry entry first, then the streams and side keys.

        Returns:
            The topic as it was stored, with partitions that another broker has added.

        Raises:
            UnknownTopic: nothing was removed, the registry has not this topic: another broker has deleted it, or moved
                it to another virtual cluster.
        """

    async def drop_streams(self, topic: Topic) -> None:
        """Remove a topic's streams and what is kept beside them; adopted ones stay, and so does the registry."""

    async def note(self, topic: Topic) -> None:
        """Note what a topic is about to become: its streams go with `finish_deletions` unless a topic has them then."""

    async def finish_deletions(self, of: Topic | None = None) -> None:
        """Remove streams that no topic has any more, as far as they are noted; what dies before is done by `load`.

        Args:
            of: a topic that is about to be moved or converted; None: none is.

        Raises:
            InvalidConfig: a note stays that cannot be read, and may be of streams of this topic. Once it is elsewhere,
                or has other streams, what that note names could be removed while the topic has it.
        """

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids nobody was given before, in any virtual cluster."""


class LogLookup(Protocol):
    """Logs that can be read."""

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """At most `count` batches that end at or before offset `end` (None: no such bound).

        The first is the one that holds `offset`, or the next one after it. Where a reader has `join`, all but the last
        may come as one, of so many bytes together, if they lie behind each other; more may be there then.
        """

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """The first batch that has a record with this timestamp (ms) or a later one."""

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """The first batch that holds the log's largest timestamp."""


class LogLook(LogLookup, Protocol):
    """One log that another server owns, as storage had it a moment ago."""

    @property
    def log_start(self) -> int:
        """First offset that may be read."""

    @property
    def next_offset(self) -> int:
        """Log end."""

    @property
    def epochs(self) -> LeaderEpochs | None:
        """Its leader epochs; None: nobody has opened it yet."""

    @property
    def high_watermark(self) -> int:
        """The high watermark as it was written down last: the present one or an earlier one; 0 where none was."""


class InSyncReplicas(Protocol):
    """How many servers have what the storage has acknowledged (`min.insync.replicas`)."""

    @property
    def can_replicate(self) -> bool:
        """Whether there may be replicas at all."""

    def primary(self, stream: str) -> object:
        """Stands for a stream's primary: equal as long as writes reach the same one over the same connection."""

    def confirm(self, stream: str, copies: int, wait_ms: int | None, done: PlaceDone) -> None:
        """Tell when so many servers have all that was acknowledged of a stream until now.

        `done` gets None then; NotEnoughReplicasAfterAppend when it has not come to that within `wait_ms` or
        `replica.lag.time.max.ms`, or cannot as there are too few; StorageUnavailable when the connection was lost.
        Without `wait_ms` it gets NotEnoughReplicasAfterAppend only when the server ends.
        """

    def why_too_few(self, stream: str, copies: int) -> str:
        """Why fewer servers than `copies` would have what is appended to a stream now; empty unless that is known."""


class LogStorage(LogLookup, Protocol):
    """The logs that this server owns. It decides where a batch goes; the storage places it there, or nowhere."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

    async def look(self, stream: str) -> LogLook:
        """A log that another server owns, as it is now."""

    async def open(self, stream: str, lost: Lost, *, create: bool = False, view: int | None = None) -> OpenedLog:
        """Shut earlier owners out of a log and learn where it starts and ends.

        Args:
            stream: the log's key.
            lost: told once when the ownership is in doubt: the log must be opened again before anything is placed.
            create: make it where it is missing; else UnknownTopic is raised.
            view: the number of the view by which this server owns it; Fenced is raised where there was a later one.
        """

    def forget(self, stream: str, lost: Lost) -> None:
        """A log is gone, as whoever was told `lost` of it has heard: what is under way fails, and `lost` is not told.

        Nothing happens where somebody else has opened it since.
        """

    def place(self, stream: str, append: Append, base_offset: int, done: PlaceDone) -> None:
        """Place a batch, stamped with its place, at the offset that follows the one placed before it.

        `done` is called before this returns where the answer is certain, else from the connection's reader, in order
        and without a task between: with None once the batch is acknowledged, else with the error, after which the
        ownership is in doubt. The batches of one event loop turn leave in one write.
        """

    async def settle(self, stream: str) -> None:
        """Return when everything that was acknowledged can be read from the storage."""

    async def save_producers(
        self,
        stream: str,
        offset: int | None,
        changes: dict[int, ProducerStateEntry | None],
        high_watermark: int | None = None,
    ) -> None:
        """Write down what has changed of the producers as of `offset`; None removes one.

        `offset`: None while there is more to write down; what is written then may be ahead of the last `offset`.
        `high_watermark`: what readers who wait for copies have been shown; None: they wait for none.
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
        """Drop leading batches older than `before_ms`, beyond `max_bytes` or before an offset; the new log start.

        The log start never moves beyond the offset of the last `save_producers`, nor beyond `up_to`.
        """

    async def size(self, stream: str) -> int:
        """Bytes of the record batches in the log."""

    async def mirror_offset(self, stream: str, group: str, offset: int) -> None:
        """Show a position as the last delivered id of a Redis consumer group."""


class NativeStorage(Protocol):
    """Plain streams and their consumer groups. Also raises `NotAStream` for a key that is no stream any more."""

    @property
    def copies(self) -> InSyncReplicas:
        """Waits for replicas."""

    async def open(self, stream: NativeStream, *, must_exist: bool = False) -> Extent:
        """Fence older servers off a partition; where it starts and ends."""

    async def extent(self, stream: NativeStream) -> Extent:
        """Where the log starts and ends just now."""

    async def size(self, stream: NativeStream) -> int:
        """Bytes that the stream takes in Redis, about; 0 when it is gone."""

    async def ahead_ms(self, stream: NativeStream) -> int:
        """How many ms a record's timestamp has been ahead of its offset's at most."""

    def append(
        self, stream: NativeStream, append: Append, done: AppendDone, *, follows: bool = False, least: int = 0
    ) -> None:
        """Append the records of a batch, all or none. Raises CorruptBatch when they cannot be read.

        It may have to wait until so many records of others are with Redis that there is room for its own; then `done`
        is told CorruptBatch. Those of one stream are appended in the order in which they were given.

        `follows`: batches of its producer were given ahead of it: it is out of order where Redis knows none of them.
        `least`: it lies there or behind.
        """

    def refuse_waiting(self, stream: NativeStream, error: TopicError) -> None:
        """Answer the appends to a stream that still wait: it is no topic's any more."""

    async def settle(self, stream: NativeStream) -> None:
        """Return when every append to it given before has its answer."""

    async def read(
        self, stream: NativeStream, offset: int, limit: int, before: int | None = None, *, first: int = LARGEST_ENTRY
    ) -> NativeRead:
        """Entries from `offset` on, below `before`: about `limit` bytes of them at most, but one in any case.

        Where that one has more than `first` bytes nothing is read, and the answer says what it `wants`.
        """

    async def read_last(
        self, stream: NativeStream, before: int, limit: int, *, first: int = LARGEST_ENTRY
    ) -> NativeRead:
        """The last entries below an offset, as many, in order; `first` is for the last of them."""

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
        """Entries nobody in the group was given yet; they are pending for `member` then.

        At most `count`, of `limit` bytes, but one in any case; `first` as for `read`. Raises GroupGone, and GroupPassed
        where another member has entered, or the group has left `last_id` and entries from the offset `at` on are
        pending for its members.
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
        """Entries from `offset` on, below `before`, that are pending for `member`, as many. Raises GroupGone."""

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        """Whether no entry lies from an offset, or behind an id, to before another offset."""

    async def trim(
        self,
        stream: NativeStream,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
    ) -> Extent:
        """Retention by time and bytes, or up to an offset."""

    def watch(self, stream: NativeStream, after: int, woken: Callable[[int | None], None]) -> None:
        """Call `woken` once when there is an entry at or after an offset, whoever adds it.

        It is told where the log ends then, or None when that has to be asked.
        """

    def unwatch(self, stream: NativeStream) -> None:
        """Stop that."""

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        """A member begins to read: the group is there, and what earlier owners left pending is the member's."""

    async def commit(self, stream: NativeStream, group: str, offset: int, kind: str = "") -> tuple[int, bool]:
        """Acknowledge below an offset; entries acknowledged, and whether the group was moved."""

    async def position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        """Where a group stands, whoever moved it; None when it has not begun."""

    async def given_until(self, stream: NativeStream, group: str) -> int | None:
        """The first offset behind all that a group was given; None: there is no such Redis group. It writes nothing."""

    async def leave(self, stream: NativeStream, group: str, member: str) -> bool:
        """Remove a member's consumer where nothing is pending for it."""

    async def forget_group(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program is in it."""

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]:
        """Every Redis consumer group of the stream, with its lag."""


class GroupStorage(Protocol):
    """Consumer groups of one virtual cluster: members and positions."""

    async def load(self) -> list[StoredGroup]:
        """Every group with its members and positions."""

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        """Apply all changes, durable when this returns: all of them or none, but for very many positions.

        Those are stored a few hundred at a time, and the last few with the rest. Where it fails in between, some are
        stored: who set them has no answer, and sets them again.

        As the owner by the view of that number: raises Fenced where somebody has been it by a later one.
        """

    async def names(self) -> list[str]:
        """Every group's name; some of them may have ended."""

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        """Take a group over as its owner by the view of that number; empty if there is none. Raises Fenced.

        `view`: None for the present one.
        """

    def is_offline(self, group: str) -> bool:
        """Whether its keys held something else than a group when it was loaded last: it can only be dropped."""

    async def drop_offline(self, group: str) -> None:
        """Remove the keys of such a group."""

    def forget(self, group: str) -> None:
        """Somebody else owns a group from now on."""


class DocumentStorage(Protocol):
    """Small values that listeners keep, such as OCI's stream pools: by kind and id, whatever is in them."""

    @property
    def unreadable(self) -> Unreadable:
        """What of all that is stored cannot be read: noted by those who read it."""

    async def load(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind by id. A kind is a word of letters, digits, `.`, `_` and `-`."""

    async def save(
        self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None
    ) -> Mapping[str, int]:
        """Apply all changes atomically, over several kinds too; durable when this returns.

        Args:
            changes: (kind, id) -> the document from now on; None removes it.
            lock: what is held while they are decided, from `locked`; None: nothing.

        Returns:
            The revisions of these kinds from now on; empty where nobody else changes any.

        Raises:
            LockLost: the lock is not held any more, and nothing was written; StorageUnavailable, StorageFull, Fenced.
        """

    def locked(self, name: str) -> AbstractAsyncContextManager[Lock]:
        """Within, no other broker is in what has this name, a word like a kind. One that is alone waits for nobody.

        Who holds it and dies has lost it after a few seconds.

        Raises:
            LockLost: others held it for too long; StorageUnavailable.
        """

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        """Store a document unless there is one already, which then stays; the one that there is now."""


class Storage(Protocol):
    """All that one virtual cluster keeps. Logs, native streams and documents are common to all clusters."""

    @property
    def topics(self) -> TopicStorage:
        """The registry of topics."""

    @property
    def logs(self) -> LogStorage:
        """The logs."""

    @property
    def native(self) -> NativeStorage:
        """Native topics' streams."""

    @property
    def groups(self) -> GroupStorage:
        """Consumer groups."""

    @property
    def documents(self) -> DocumentStorage:
        """What listeners keep."""


class Change(Protocol):
    """Something that a broker has changed."""

    @property
    def kind(self) -> str:
        """`view`, `topics`, `documents` or `leaders`."""

    @property
    def name(self) -> str:
        """The topic's name; the kinds of documents; streams and leaders."""

    @property
    def cluster(self) -> str:
        """The topic's virtual cluster."""


class MembershipStorage(Protocol):
    """What the brokers of a keyspace know of each other. Every call raises StorageUnavailable."""

    async def beat(self, me: Member, counter: int, known: View | None) -> tuple[View | None, Counters, str]:
        """Say that a broker is alive; the view, everybody's heartbeats, and the id of the last change."""

    async def change(self, proposal: Proposal) -> View:
        """Make a proposal the view, if nobody was faster; the view that there is now."""

    def enter(self, number: int) -> None:
        """Write under the number of this view from now on."""

    async def changes(self, after: str, wait_ms: int) -> Sequence[tuple[str, Change]]:
        """What has changed behind a change's id; waits that long for something."""

    async def has_change(self, change_id: str) -> bool:
        """Whether a change is still there: neither lost in a failover nor dropped for newer ones.

        Of `0-0`, which is before all changes: whether none has been dropped.
        """

    async def last_change(self) -> str:
        """The id of the last change; `0-0` where there was none."""

    async def leaders(self) -> dict[str, Leader]:
        """Stream -> who has opened its log last."""

    async def publish(self, leaders: Mapping[str, Leader]) -> None:
        """Tell every broker, this one too, who has opened logs. Also raises Fenced."""


class ClusterStorage(Storage, Protocol):
    """The storage of a server with several virtual clusters; itself it is the default one's."""

    def in_cluster(self, name: str) -> Storage:
        """The storage as another virtual cluster sees it: topics and groups of its own."""

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        """Take a topic from one virtual cluster to another; its streams stay. Raises UnknownTopic, TopicExists."""
