"""The storage of a server: a Redis or Valkey, checked, fenced and ready."""

from copy import copy
from typing import Any, Self
from uuid import uuid4

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from headrace.keyspace import LAYOUT_VERSION
from headrace.keyspace.keys import Keyspace
from headrace.keyspace.scripts import script
from headrace.store.connection import Connection, encode
from headrace.store.documents import RedisDocuments
from headrace.store.errors import TooOld, Unreachable, WrongLayout
from headrace.store.groups import RedisGroups
from headrace.store.journal import Journal
from headrace.store.logs import DEFAULT_PRODUCER_EXPIRY_MS, RedisLogs, load_commands
from headrace.store.native import RedisNative
from headrace.store.replay import replay
from headrace.store.replies import checked
from headrace.topics.errors import TopicError, TopicExists, UnknownTopic
from headrace.topics.model import Topic

_MOVE_TOPIC = script("move_topic")
_log = structlog.get_logger("headrace.store")
_OLDEST_REDIS = (7, 0)
_CONNECTION_NAME = "headrace-server"
"""Tells the connections that servers write over from those of people and of readers."""


class Durability(msgspec.Struct, frozen=True):
    """What the server behind the URL keeps when it or its machine dies, as far as it tells."""

    append_only: str = ""
    fsync: str = ""
    save: str = ""
    eviction: str = ""

    def warnings(self) -> list[str]:
        """What an operator should know, a sentence each; empty when all is well or nothing is known."""
        found = []
        if self.append_only == "no" and not self.save:
            found.append("this Redis keeps nothing on disk: everything is lost when it stops (set appendonly yes)")
        elif self.append_only == "no":
            found.append("this Redis writes snapshots only: what came after the last is lost (set appendonly yes)")
        elif self.append_only == "yes" and self.fsync == "everysec":
            found.append(
                "this Redis has appendfsync everysec: a kill -9 may lose acknowledged records of the last second "
                "or two (appendfsync no loses none then; always survives power loss too)"
            )
        if self.eviction not in ("", "noeviction"):
            found.append(
                f"this Redis evicts keys when memory is full ({self.eviction}): set maxmemory-policy noeviction"
            )
        return found


class RedisStorage(RedisNative, RedisLogs, RedisGroups, RedisDocuments):
    """Implements all of `broker.ports` on one connection."""

    def __init__(
        self,
        url: str,
        admin: redis.asyncio.Redis,
        connection: Connection,
        keyspace: Keyspace,
        epoch: int,
        cluster: str,
        producer_expiry_ms: int = DEFAULT_PRODUCER_EXPIRY_MS,
        *,
        alone: bool = False,
        journal: Journal | None = None,
    ) -> None:
        RedisLogs.__init__(
            self, connection, keyspace, epoch, producer_expiry_ms=producer_expiry_ms, alone=alone, journal=journal
        )
        RedisGroups.__init__(self, connection, keyspace, epoch)
        RedisDocuments.__init__(self, connection, keyspace, epoch)
        self.watch_at(url)
        self.url = url
        self.cluster_id = cluster
        self.epoch = epoch
        self._admin = admin

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
    ) -> Self:
        """Check the layout and connect.

        Args:
            url: what redis-py's `from_url` takes.
            admin: a client for that URL, closed by `close`.
            epoch: this server's fencing epoch, from the lease or the data directory's lock.
            keyspace: the keys; the default ones if None.
            producer_expiry_ms: how long a producer that is silent is remembered (`producer.id.expiration.ms`).
            alone: no other server can write to this Redis as long as this one lives: a lock sees to that. Appends
                then need not ask the fencing epoch each time.
            journal: that of the data directory, closed by `close`: what it holds is stored before anything else.
            journal_bytes: its size from now on; 0: it is not needed any more.

        Raises:
            Unreachable, TooOld, WrongLayout; StoreError: the journal could not be made.
        """
        keyspace = keyspace or Keyspace()
        try:
            await _check_version(admin)
            cluster = await _check_layout(admin, keyspace)
            if alone:
                await _end_older_servers(admin)
        except RedisError as error:
            raise Unreachable(f"Redis at {url} does not answer as it should: {error}") from None
        name = [encode(["CLIENT", "SETNAME", _CONNECTION_NAME])] if alone else []
        connection = Connection(url, [*name, *load_commands()])
        await connection.open()
        if journal is not None:
            try:
                journal = await _replayed(connection, epoch, keyspace.topics, journal, journal_bytes)
            except BaseException:
                await connection.close()
                raise
        return cls(url, admin, connection, keyspace, epoch, cluster, producer_expiry_ms, alone=alone, journal=journal)

    def in_cluster(self, name: str) -> Self:
        """The same storage as another virtual cluster sees it. Raises ValueError for a name that cannot be in a key."""
        # Everything but the names of keys is shared, above all the queue of appends: a topic that moves takes with it
        # what is still under way.
        view = copy(self)
        view._keyspace = msgspec.structs.replace(self._keyspace, cluster=name)
        view._registered = set()
        return view

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        """Take a topic from one virtual cluster to another, records and all. Raises UnknownTopic, TopicExists."""
        keys = [
            self.in_cluster(source)._keyspace.topics,
            self.in_cluster(target)._keyspace.topics,
            self._keyspace.epoch,
        ]
        moved = await self._run(_MOVE_TOPIC, keys, self._epoch, topic.name)
        if moved == 0:
            raise UnknownTopic(f"no topic {topic.name!r} in {source!r}")
        if moved < 0:
            raise TopicExists(f"topic {topic.name!r} exists already in {target!r}")

    async def durability(self) -> Durability:
        """What Redis is set to keep; empty where it does not tell (CONFIG is often closed in the cloud)."""
        try:
            found: dict[Any, Any] = await self._admin.config_get(
                "appendonly", "appendfsync", "save", "maxmemory-policy"
            )
        except RedisError:
            return Durability()
        told = {_text(name): _text(value) for name, value in found.items()}
        return Durability(
            append_only=told.get("appendonly", ""),
            fsync=told.get("appendfsync", ""),
            save=told.get("save", ""),
            eviction=told.get("maxmemory-policy", ""),
        )

    async def ping(self) -> None:
        """Raises StorageUnavailable when the hot connection is down."""
        await self._connection.call("PING")

    async def close(self) -> None:
        """Close the connections; what is stored stays."""
        await self.stop_watching()
        self._appends.flush()
        await self._connection.close()
        await self._appends.close()
        await self._admin.aclose()


async def _replayed(connection: Connection, epoch: int, topics: str, journal: Journal, size: int) -> Journal | None:
    """Store what is in the journal and not in Redis; the journal to go on with."""
    entries, waiting = journal.in_doubt(), len(journal.waiting())
    try:
        lost = await replay(connection, epoch, entries)
        # A write that changes nothing: it is refused where the disk had no room for those before it.
        checked(await connection.call("HDEL", topics, ""))
    except TopicError as error:
        raise Unreachable(f"Redis does not take what is in the journal: {error}; start again") from None
    if waiting:
        _log.info("stored what was acknowledged before the last end", batches=max(0, waiting - lost))
    if size:
        return journal.renewed(size)
    journal.remove()
    return None


async def _end_older_servers(admin: redis.asyncio.Redis) -> None:
    """Close what a server that is dead has left open: requests it had sent may still wait to be read."""
    for client in await admin.client_list():
        if client.get("name") == _CONNECTION_NAME:
            await admin.client_kill_filter(_id=client["id"])


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


async def _check_version(admin: redis.asyncio.Redis) -> None:
    info: dict[str, Any] = await admin.info("server")
    version = str(info.get("redis_version", ""))
    # Valkey tells the Redis version it is compatible with here, and its own elsewhere.
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < _OLDEST_REDIS:
        raise TooOld(f"Redis {version} is too old: Headrace needs Redis 7.0 or later, or Valkey 8 or later")


async def _check_layout(admin: redis.asyncio.Redis, keyspace: Keyspace) -> str:
    found = await _get_or_set(admin, keyspace.version, str(LAYOUT_VERSION))
    if not found.isdecimal() or int(found) > LAYOUT_VERSION:
        raise WrongLayout(
            f"the data was written in layout {found}, this Headrace knows {LAYOUT_VERSION}: use a newer Headrace"
        )
    return await _get_or_set(admin, keyspace.cluster_id, uuid4().hex[:22])


async def _get_or_set(admin: redis.asyncio.Redis, key: str, value: str) -> str:
    """What is stored; `value` from now on if nothing was."""
    # Asked first: a Redis that is full refuses SET even where it would set nothing.
    stored = await admin.get(key)
    if stored is None:
        await admin.set(key, value, nx=True)
        stored = await admin.get(key)
    return _text(stored or "")
