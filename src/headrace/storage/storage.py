"""The storage of a server: a Redis or Valkey that is checked, fenced and ready."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

import msgspec
import redis.asyncio
import structlog

from headrace.aio.tasks import end
from headrace.metrics.counters import StoreCounters
from headrace.metrics.unreadable_values import Unreadable
from headrace.storage.brokers import raise_layout
from headrace.storage.documents import RedisDocuments
from headrace.storage.errors import Unreachable, unusable
from headrace.storage.fence import Fence
from headrace.storage.free_space import FreeSpace
from headrace.storage.groups import RedisGroups
from headrace.storage.journal.acks import JournaledAcks
from headrace.storage.journal.journal import Journal
from headrace.storage.layout import LAYOUT_VERSION
from headrace.storage.layout.keys import Keyspace
from headrace.storage.logs.redis_logs import DEFAULT_PRODUCER_EXPIRY_MS, RedisLogs
from headrace.storage.logs.replay import replay
from headrace.storage.logs.replicas import NoReplicas, RedisReplicas
from headrace.storage.native.topics import RedisNative
from headrace.storage.preflight import Durability, check_layout, clock_difference, durability, examine, text
from headrace.storage.redis.clients import ERRORS
from headrace.storage.redis.connection import Connection, Readiness
from headrace.storage.redis.protocol import encode
from headrace.storage.redis.script_calls import Scripts, load_commands
from headrace.storage.redis.shards import Shards, connected
from headrace.storage.redis.url import Kind, StorageUrl
from headrace.storage.shares import RedisShares
from headrace.storage.topics import RedisTopics
from headrace.storage.transactions import RedisTransactions
from headrace.storage.valkey.aof import AppendOnlyFile
from headrace.topics.errors import StorageUnavailable, TopicError
from headrace.topics.model import Topic

_log = structlog.get_logger("headrace.storage")
_CONNECTION_NAME = "headrace-server"
"""Distinguishes the connections of servers from those of people and readers."""


class ClusterParts:
    """Storage of one virtual cluster: implements `broker.ports.Storage`."""

    def __init__(self, shared: "RedisStorage", keyspace: Keyspace) -> None:
        self.keyspace = keyspace
        self.logs = shared.logs
        self.native = shared.native
        self.documents = shared.documents
        self.topics = RedisTopics(shared.scripts, keyspace, shared.fence, shared.logs, shared.native, shared.unreadable)
        self.groups = RedisGroups(shared.scripts, keyspace, shared.fence, unreadable=shared.unreadable)
        self.shares = RedisShares(shared.scripts, keyspace, shared.logs, shared.copies)
        self.transactions = RedisTransactions(
            shared.scripts, keyspace, shared.fence, shared.copies, unreadable=shared.unreadable
        )


class RedisStorage:
    """All storage over one connection: implements `broker.ports.ClusterStorage`."""

    def __init__(
        self,
        url: str,
        admin: redis.asyncio.Redis,
        shards: Shards,
        keyspace: Keyspace,
        epoch: int,
        cluster: str,
        *,
        producer_expiry_ms: int = DEFAULT_PRODUCER_EXPIRY_MS,
        early: JournaledAcks | None = None,
        disk: FreeSpace | None = None,
        counted: StoreCounters,
        replicas_ms: int | None,
        file: AppendOnlyFile | None,
    ) -> None:
        """Use `open`."""
        shards.on_restored.append(partial(_count_reconnect, counted))
        self._clients = [admin]
        self._leaving: set[asyncio.Task[None]] = set()
        if StorageUrl.parse(url).kind is Kind.SENTINEL:
            shards.on_lost.append(self._leave)
        self.url = url
        self.cluster_id = cluster
        self.fence = Fence(epoch)
        """Fencing number of all writes, raised with each view."""
        self._admin = admin
        self._shards = shards
        self.unreadable = Unreadable(_log_unreadable)
        """Stored values that were skipped because they cannot be read."""
        self.scripts = Scripts(shards, disk)
        self.copies = NoReplicas() if replicas_ms is None else RedisReplicas(shards, replicas_ms)
        self._file, self._early, self._disk = file, early, disk
        self.logs = RedisLogs(
            self.scripts,
            self.fence,
            producer_expiry_ms=producer_expiry_ms,
            early=early,
            disk=disk,
            counted=counted,
            copies=self.copies,
            file=file,
            raise_layout=partial(_raise_layout, admin, keyspace, url),
        )
        self.native = RedisNative(
            self.scripts,
            url,
            self.fence,
            producer_expiry_ms=producer_expiry_ms,
            counted=counted,
            copies=self.copies,
        )
        self.documents = RedisDocuments(self.scripts, keyspace, self.fence, self.unreadable)
        self._default = ClusterParts(self, keyspace)
        self.topics, self.groups = self._default.topics, self._default.groups
        self.transactions, self.shares = self._default.transactions, self._default.shares

    @classmethod
    async def open(
        cls,
        url: str,
        admin: redis.asyncio.Redis,
        epoch: int,
        keyspace: Keyspace | None = None,
        *,
        producer_expiry_ms: int = DEFAULT_PRODUCER_EXPIRY_MS,
        alone: bool = False,
        journal: Journal | None = None,
        journal_bytes: int = 0,
        disk: FreeSpace | None = None,
        counted: StoreCounters | None = None,
        replicas_ms: int | None = None,
        records: Path | None = None,
    ) -> Self:
        """Check the layout and connect.

        `admin` is a client for the URL, which `close` closes. `epoch` is this server's epoch, or the number of its
        view. `alone` states that a lock keeps other servers out. The journal's batches are stored first, then it gets
        `journal_bytes` (0 removes it). `disk` and `records`, the folder of the append-only file, are for a local Redis.
        `replicas_ms` is the maximum wait of acks=all for replicas, None if this Redis never has any.

        Raises:
            Unreachable, TooOld, WrongKind, WrongLayout, Evicting, StoreError (no journal).
        """
        keyspace = keyspace or Keyspace()
        await examine(url, admin, keyspace)
        try:
            empty = await admin.get(keyspace.version) is None
            cluster = await _take_layout(admin, keyspace)
            if alone:
                await _end_older_servers(admin)
        except ERRORS as error:
            raise unusable(error, url) from None
        name = [encode(["CLIENT", "SETNAME", _CONNECTION_NAME])] if alone else []
        counted = counted or StoreCounters()
        shards = await connected(url, admin, [*name, *load_commands()])
        early: JournaledAcks | None = None
        if journal is not None:
            connection = shards.at(keyspace.version)
            try:
                journal = await replay(connection, epoch, journal, journal_bytes, empty=empty)
            except TopicError as error:
                await shards.close()
                raise Unreachable(f"Valkey does not take what is in the journal: {error}; start again") from None
            except BaseException:
                await shards.close()
                raise
            early = JournaledAcks.over(journal, connection, counted)
        return cls(
            url, admin, shards, keyspace, epoch, cluster, producer_expiry_ms=producer_expiry_ms, early=early,
            disk=disk, counted=counted, replicas_ms=replicas_ms,
            file=None if records is None else AppendOnlyFile.open(records),
        )  # fmt: skip

    @property
    def reads_file(self) -> bool:
        """Return whether the page cache serves records that are no longer in memory."""
        return self._file is not None

    def in_cluster(self, name: str) -> ClusterParts:
        """Return the storage of another virtual cluster. Raises ValueError for an invalid name."""
        # Shared, so that a topic that moves keeps its writes in flight.
        return ClusterParts(self, msgspec.structs.replace(self._default.keyspace, cluster=name))

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        """Move a topic with its records to another virtual cluster. Raises UnknownTopic, TopicExists."""
        names = (msgspec.structs.replace(self._default.keyspace, cluster=name) for name in (source, target))
        await self.topics.move(topic, *names)

    async def durability(self) -> Durability:
        """Return the durability settings, empty if Redis denies CONFIG."""
        return await durability(self._admin)

    async def clock_difference(self) -> float:
        """Return how many seconds Redis's clock is ahead."""
        with contextlib.suppress(*ERRORS):
            return await clock_difference(self._admin)
        return 0.0

    async def evicting(self) -> str | None:
        """Return why Redis may evict acknowledged records. Empty: it does not. None: CONFIG is denied."""
        found = await self.durability()
        return found.evicting if found.eviction else None

    async def ping(self) -> None:
        """Raise StorageUnavailable if a hot connection is down."""
        await self._shards.ping()

    async def readiness(self, within_s: float) -> Readiness:
        """Return the problems of Redis and of its disk; see `Shards.readiness`. Raises StorageUnavailable."""
        found = await self._shards.readiness(within_s)
        if self._disk is None or (full := self._disk.why_refused()) is None:
            return found
        return Readiness((full, *found.problems), writable=False)

    def look_at_journal(self) -> None:
        """Report a missing journal, and create a new one."""
        if self._early is not None:
            self._early.look()

    def take_along(self, client: redis.asyncio.Redis) -> redis.asyncio.Redis:
        """Make another client look up the primary again whenever the hot connection does."""
        self._clients.append(client)
        return client

    def _leave(self, _: Connection) -> None:
        for client in self._clients:
            task = asyncio.get_running_loop().create_task(_disconnect(client), name="sentinels")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close all connections."""
        await self.native.close()
        await self.documents.close()
        self.logs.flush()
        await self.copies.close()
        await self._shards.close()
        await self.logs.close()
        if self._file is not None:
            await self._file.close()
        for task in tuple(self._leaving):
            await end(task)
        await self._admin.aclose()


def _log_unreadable(kind: str, name: str, reason: str | None) -> None:
    if reason is None:
        _log.info("a stored value is readable again or was deleted", kind=kind, name=name)
    else:
        _log.error("a stored value cannot be read: it is skipped", kind=kind, name=name, reason=reason)


def _count_reconnect(counted: StoreCounters) -> None:
    counted.reconnects += 1


async def _disconnect(client: redis.asyncio.Redis) -> None:
    with contextlib.suppress(*ERRORS):
        await client.connection_pool.disconnect()


async def _end_older_servers(admin: redis.asyncio.Redis) -> None:
    """Redis may still have requests of a dead server to read."""
    for client in await admin.client_list():
        if client.get("name") == _CONNECTION_NAME:
            await admin.client_kill_filter(_id=client["id"])


async def _take_layout(admin: redis.asyncio.Redis, keyspace: Keyspace) -> str:
    check_layout(await _get_or_set(admin, keyspace.version, str(LAYOUT_VERSION)))
    return await _get_or_set(admin, keyspace.cluster_id, uuid4().hex[:22])


async def _raise_layout(admin: redis.asyncio.Redis, keyspace: Keyspace, url: str) -> None:
    """Keep servers out that know no transactions. Raises StorageUnavailable."""
    try:
        await raise_layout(admin, keyspace)
    except ERRORS as error:
        raise StorageUnavailable(str(unusable(error, url))) from None


async def _get_or_set(admin: redis.asyncio.Redis, key: str, value: str) -> str:
    # A full Redis rejects SET NX even if the key exists.
    stored = await admin.get(key)
    if stored is None:
        await admin.set(key, value, nx=True)
        stored = await admin.get(key)
    return text(stored or "")
