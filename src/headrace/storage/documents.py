"""Documents in Redis: `broker.ports.DocumentStorage`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from headrace.membership.view import ALONE, Lock
from headrace.metrics.unreadable_values import WHOLE, Unreadable
from headrace.storage.fence import Fence
from headrace.storage.layout.keys import Keyspace
from headrace.storage.locks import Locks
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.errors import Fenced, StorageFull, StorageUnavailable, TopicError


class RedisDocuments:
    """Small values that the APIs keep: one hash for each kind."""

    def __init__(
        self, scripts: Scripts, keyspace: Keyspace, fence: Fence, unreadable: Unreadable | None = None
    ) -> None:
        """`unreadable`: where those who read documents note what they had to skip."""
        self.unreadable = unreadable or Unreadable()
        self._scripts = scripts
        self._keyspace = keyspace
        self._fence = fence
        self._locks = Locks(scripts, keyspace)

    async def load(self, kind: str) -> dict[str, bytes]:
        """Every document of a kind by id, in id order."""
        key = self._keyspace.documents(kind)
        found = checked(await self._scripts.shards.at(key).call("HGETALL", key))
        # A name that is no text is nothing that a server wrote; its document is skipped by whoever decodes it.
        pairs = sorted(zip(found[::2], found[1::2], strict=True))
        return {name.decode("utf-8", "surrogateescape"): value for name, value in pairs}

    async def keep(self, kind: str, name: str, document: bytes) -> bytes:
        """Store a document unless there is one; see `broker.ports.DocumentStorage.keep`.

        Where the kind's key holds something else the given one holds until this server ends: what was made with a
        stored one is refused.
        """
        try:
            return await self._keep(kind, name, document)
        except (Fenced, StorageFull, StorageUnavailable):
            raise
        except TopicError as error:
            self.unreadable.note(kind, WHOLE, error)
            return document

    async def _keep(self, kind: str, name: str, document: bytes) -> bytes:
        key = self._keyspace.documents(kind)
        connection = self._scripts.shards.at(key)
        # Where it is there already it is only read: a server has to start while Redis is full, or takes no writes.
        kept: bytes | None = checked(await connection.call("HGET", key, name))
        if kept is None:
            checked(await connection.call("HSETNX", key, name, document))
            kept = checked(await connection.call("HGET", key, name))
        assert kept is not None
        return kept

    @asynccontextmanager
    async def locked(self, name: str) -> AsyncIterator[Lock]:
        """See `broker.ports.DocumentStorage.locked`."""
        if not self._fence.shared:
            yield ALONE
            return
        async with self._locks.held(name) as lock:
            yield lock

    async def close(self) -> None:
        """Nothing of this goes on."""
        await self._locks.close()

    async def save(self, changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        """Apply all changes atomically; see `broker.ports.DocumentStorage.save`."""
        if not changes:
            return {}
        held = lock or ALONE
        kinds = {kind: place for place, kind in enumerate(sorted({kind for kind, _ in changes}), 1)}
        keyspace = self._keyspace
        # Without a lock any key of the same slot will do.
        keys = [keyspace.epoch, keyspace.view, keyspace.changes, keyspace.revisions, held.key or keyspace.epoch]
        keys += [keyspace.documents(kind) for kind in kinds]
        arguments: list[str | bytes | int] = [held.token, " ".join(kinds)]
        for (kind, name), value in changes.items():
            arguments += ["D", kinds[kind], name] if value is None else ["S", kinds[kind], name, value]
        revisions: list[int] = await self._fence.write(
            lambda number: self._scripts.run("save_documents", keys, number, *arguments)
        )
        for kind, name in changes:
            self.unreadable.clear(kind, name)
        return dict(zip(kinds, revisions, strict=False))
