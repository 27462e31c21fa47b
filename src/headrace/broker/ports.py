"""Interfaces that the broker requires of its storage.

All calls raise `topics.errors` classes: `Fenced`, `StorageFull`, `StorageUnavailable`, or those documented.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from headrace.broker.log_ports import LogStorage, NativeStorage
from headrace.groups.model import GroupChange, StoredGroup
from headrace.groups.sharing.state import ShareState
from headrace.membership.participant import Counters, Proposal
from headrace.membership.view import Leader, Lock, Member, View
from headrace.metrics.unreadable_values import Unreadable
from headrace.topics.model import Topic
from headrace.transactions.model import StoredTransaction, TransactionChange


class TopicStorage(Protocol):
    """Registry of one virtual cluster's topics."""

    async def load(self) -> list[Topic]:
        """Return all readable topics in name order."""

    async def find(self, name: str) -> Topic | None:
        """Return a stored topic, if any. Raises UnreadableTopic."""

    def unreadable(self, name: str) -> str | None:
        """Return why an entry is unreadable."""

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


class ShareStorage(Protocol):
    """Share partitions, next to their logs."""

    async def init(self, stream: str, group: str, state: ShareState, copies: int = 1) -> bool:
        """Begin a state epoch, as the coordinator. Return False if it had begun. Raises Fenced for an earlier one.

        Return when `copies` servers have it (`min.insync.replicas`).
        Check afterwards that the topic still exists.
        """

    async def look(self, stream: str, group: str) -> ShareState | None:
        """Return the stored state."""

    async def load(self, stream: str, group: str) -> tuple[int, ShareState | None]:
        """Return this leader's term and the stored state. Raises UnknownTopic or Fenced for others than the leader."""

    async def save(self, stream: str, group: str, term: int, state: ShareState, copies: int = 1) -> bool:
        """Replace the state, one write at a time. Return False if its epoch is over: load it again."""

    async def drop(self, stream: str, group: str, epoch: int) -> None:
        """Remove the state. Raises Fenced if a later epoch has begun."""


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
    def shares(self) -> ShareStorage:
        """Share partitions."""

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
